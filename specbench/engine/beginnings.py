"""Beginnings that prompts of a run share, read once: caches of their first tokens, which later prompts copy.

A system prompt, few-shot examples and the earlier turns of a conversation begin many prompts of a task. Keys and values
of a token depend only on the tokens up to it, so equal beginnings have equal ones. For an encoder-decoder model, only
the encoder's output for an equal source can be copied.

Caches whose first slots are the text's first tokens are copied. A recurrent state belongs to one length of the text, a
window drops tokens, and a draft that follows the target's states needs the states of the whole prompt: in these cases
every prompt is read, and counted as read.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from specbench.engine.session import Prompt

LEAST = 8  # tokens of a beginning that is copied: to read fewer with the rest takes no longer
MOST_KEPT = 8  # beginnings of a model; the one that was not used for longest makes room


class PromptTokens:
    """Tokens of prompts that all models of this process have read, and copied, so far."""

    def __init__(self) -> None:
        self.read = self.copied = 0

    def now(self) -> "PromptCount":
        """The numbers so far."""
        return PromptCount(self.read, self.copied)


class PromptCount(NamedTuple):
    """Tokens of prompts that were read, and copied."""

    read: int
    copied: int

    def to(self, later: "PromptCount") -> "PromptCount":
        """The tokens read and copied between this count and a later one."""
        return PromptCount(later.read - self.read, later.copied - self.copied)


PROMPTS = PromptTokens()


class BeginsWithPrompt(Protocol):
    """A session that has read nothing of a prompt's prefix."""

    def read_first(self, tokens: Sequence[int]) -> None:
        """Read the next tokens of the prompt, of which no logits are asked for."""
        ...

    def beginning(self, count: int) -> Any:
        """A copy of what is cached for the first `count` tokens."""
        ...

    def lent(self, count: int) -> Any:
        """What is cached for the first `count` tokens, until the session reads on."""
        ...

    def begin_with(self, kept: Any, count: int) -> None:
        """Take over the first `count` tokens of a copy, of which the session has read none."""
        ...


class Kept(NamedTuple):
    """Tokens, and a copy of what a session caches for them."""

    tokens: tuple[int, ...]
    cached: Any


class Beginnings:
    """Caches that sessions of one model copy, in one kind of decoding.

    Kept is what another of `prompts` begins with; which of them is decoded first does not matter.
    """

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self._shared = shared_lengths([prompt.prefix for prompt in prompts])
        sources = Counter(prompt.source for prompt in prompts if prompt.source)
        self._repeated = {source for source, times in sources.items() if times > 1}
        self._kept: list[Kept] = []  # the last used last
        self._of_source: dict[tuple[int, ...], Any] = {}

    def __bool__(self) -> bool:
        """Whether anything of these prompts can be copied."""
        return bool(self._repeated) or any(length >= LEAST for length in self._shared.values())

    def expect_all_of(self, prompt: Prompt) -> None:
        """A later prompt, which is not known yet, begins with all of `prompt`: with its turns."""
        self._shared[prompt.prefix] = len(prompt.prefix)

    def find(self, tokens: tuple[int, ...], most: int) -> tuple[Any, int]:
        """A copy, and how many of `tokens` it begins with, at most `most`; none of fewer than LEAST."""
        lengths = [common_length(kept.tokens, tokens) for kept in self._kept]
        best = max(range(len(lengths)), key=lengths.__getitem__, default=None)
        if best is None or (count := min(lengths[best], most)) < LEAST:
            return None, 0
        self._kept.append(self._kept.pop(best))
        return self._kept[-1].cached, count

    def due(self, prompt: Prompt) -> int:
        """How many tokens of `prompt` are to be kept now that it is read: more than are kept."""
        count = min(self._shared.get(prompt.prefix, 0), len(prompt.prefix) - 1)
        known = max((common_length(kept.tokens, prompt.prefix[:count]) for kept in self._kept), default=0)
        return count if count - known >= LEAST else 0

    def keep(self, tokens: tuple[int, ...], cached: Any) -> None:
        """Hold a copy, in place of those that it begins with."""
        self._kept = [one for one in self._kept if tokens[: len(one.tokens)] != one.tokens]
        self._kept = [*self._kept, Kept(tokens, cached)][-MOST_KEPT:]

    def of_source(self, source: tuple[int, ...]) -> Any:
        """The encoder's output for an equal source; None if it is not cached."""
        return self._of_source.get(source)

    def repeats(self, source: tuple[int, ...]) -> bool:
        """Whether what the encoder makes of `source` is to be kept."""
        return source in self._repeated and source not in self._of_source

    def keep_source(self, source: tuple[int, ...], made: Any) -> None:
        """Hold what the encoder made of `source`."""
        while len(self._of_source) >= MOST_KEPT:
            del self._of_source[next(iter(self._of_source))]
        self._of_source[source] = made


class OfSession(Beginnings):
    """The prompt as a session has read it, which a session of a model with the same layers takes over."""

    def __init__(self, session: Any) -> None:
        """`session`: one that begins with a prompt."""
        super().__init__([])
        self._session = session

    def find(self, tokens: tuple[int, ...], most: int) -> tuple[Any, int]:
        count = min(self._session.length, most)
        return (self._session.lent(count), count) if count else (None, 0)


def read_prefix(session: BeginsWithPrompt, prompt: Prompt, beginnings: Beginnings | None, most: int) -> None:
    """Bring `session` to the last token of the prefix, which is read in the first step.

    At most `most` tokens are copied from `beginnings`, the others read.
    """
    tokens = prompt.prefix[:-1]
    cached, count = (None, 0) if beginnings is None else beginnings.find(tokens, min(most, len(tokens)))
    if count:
        session.begin_with(cached, count)
    if rest := tokens[count:]:
        session.read_first(rest)
    if beginnings is not None and (due := beginnings.due(prompt)):
        beginnings.keep(tokens[:due], session.beginning(due))
    PROMPTS.read += len(rest)
    PROMPTS.copied += count


def shared_lengths(texts: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], int]:
    """The length of the longest beginning that each text shares with another text."""
    ordered, found = sorted(texts), dict.fromkeys(texts, 0)
    for one, other in pairwise(ordered):  # a text has its longest shared beginning with a neighbour
        count = common_length(one, other)
        found[one], found[other] = max(found[one], count), max(found[other], count)
    return found


def common_length(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens both begin with."""
    same, most = 0, min(len(one), len(other))
    while same < most:
        middle = (same + most + 1) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            most = middle - 1
    return same
