"""Timed passes of the decoding loop, in rounds: `analysis.costs.probe` times them, documents that choose keep them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from specbench.recorded import OMITTED

Key = tuple[str, int]  # a candidate's name, and gamma


@dataclass(frozen=True)
class Timed:
    """A timed pass, in seconds.

    `asked` is the number of tokens it was asked to draft, `first` whether it began a completion. For a tree both count
    levels, and a tree has all levels that were asked for, though some of its nodes may have ended.
    """

    asked: int
    drafted: int
    accepted: int
    first: bool
    draft_s: float
    verify_s: float
    accept_s: float
    experts: Annotated[int | None, "that the target read, all layers together; absent without experts", OMITTED] = None


@dataclass(frozen=True)
class TimedPasses:
    """The timed passes of one candidate and gamma in one round."""

    candidate: str
    gamma: int
    timed: list[Timed]


@dataclass(frozen=True)
class Round:
    """A round of baseline steps and of the passes of each candidate and gamma, at one place of one completion."""

    steps_s: list[float]
    first_steps_s: Annotated[list[float], "of the first step of each completion"]
    waited: Annotated[float | None, "share of the time in which the process waited for a core; null: not known"] = None
    passes: list[TimedPasses] = field(default_factory=list)

    @classmethod
    def of(cls, passes: Mapping[Key, Sequence[Timed]], steps_s: Sequence[float] = ()) -> "Round":
        """A round with these passes, whose lists may grow."""
        return cls(
            [*steps_s], [], None, [TimedPasses(name, gamma, [*timed]) for (name, gamma), timed in passes.items()]
        )

    @property
    def by_key(self) -> dict[Key, list[Timed]]:
        """The passes of each candidate and gamma."""
        return {(one.candidate, one.gamma): one.timed for one in self.passes}
