"""Prompts of small networks: a source for an encoder, or a prefix for a decoder."""

from collections.abc import Sequence

from specbench.engine.session import Prompt

SOURCE = (5, 9, 12, 30, 1)
SOURCES = [SOURCE, (17, 3, 22, 1)]
THREE = [*SOURCES, (8, 8, 31, 14, 2, 25, 1)]


def prompt(kind: str, tokens: tuple[int, ...] = SOURCE) -> Prompt:
    return Prompt(tokens, (0,)) if kind.startswith("t5") else Prompt((), tokens)


def prompts(kind: str, sources: Sequence[tuple[int, ...]] = SOURCES) -> list[Prompt]:
    """A decoder reads them without their end."""
    return [prompt(kind, source if kind.startswith("t5") else source[:-1]) for source in sources]


def varied(kind: str, length: int = 5) -> Prompt:
    """A prompt of so many tokens, others for each length."""
    return prompt(kind, tuple(2 + (length * 5 + index * 3) % 38 for index in range(length)))
