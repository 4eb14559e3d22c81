"""Equal prompts: asked twice they tell little more than once, so they count as one in every interval."""

from collections.abc import Hashable, Iterable, Sequence

from specbench.records.run_record import PromptRecord


def groups_of(prompts: Sequence[PromptRecord]) -> list[int]:
    """A number for each prompt, the same for equal prompts: 0, 1, ... in the order in which they first occur."""
    return numbers_of((prompt["prompt"], prompt["prompt_tokens"], prompt.get("turn")) for prompt in prompts)


def numbers_of(keys: Iterable[Hashable]) -> list[int]:
    """A number for each of `keys`, the same for equal ones: 0, 1, ... in the order in which they first occur."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def said(prompts: int, different: int) -> str:
    """The line that names equal prompts on a screen."""
    return (
        f"EQUAL PROMPTS: {prompts} prompts, {different} of them different; equal prompts count as one in "
        f"every interval{'' if different > 1 else ', and one prompt has none'}"
    )
