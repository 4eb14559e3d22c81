"""Every outcome of a random procedure, and how likely each is: the procedure is played again and again, each time along
decisions that were not taken before. It takes them from a `Branch` and from nowhere else.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

from torch import Tensor

T = TypeVar("T")


class Branch:
    """One play: the decisions of `script`, then the first possible one each time. A `Chance` of rules on trees."""

    def __init__(self, script: list[int]) -> None:
        self.script, self.taken = script, list[int]()
        self.probability = 1.0
        self.others: list[list[int]] = []  # scripts of what could have been decided

    def draw(self, row_V: Tensor) -> int:
        return self._decide(row_V.tolist())

    def accepts(self, node: int, over: Tensor, under: Tensor) -> bool:
        accepted = min(1.0, float(over) / float(under)) if under > 0 else float(over > 0)
        return self._decide([1 - accepted, accepted]) == 1

    def _decide(self, likely: list[float]) -> int:
        possible = [outcome for outcome, chance in enumerate(likely) if chance > 0]
        if len(self.taken) < len(self.script):
            taken = self.script[len(self.taken)]
        else:
            taken, *others = possible
            self.others += [[*self.taken, other] for other in others]
        self.taken.append(taken)
        self.probability *= likely[taken]
        return taken


def outcomes(play: Callable[[Branch], T]) -> Iterator[tuple[float, T]]:
    """(probability, result) of each way that `play` can go."""
    scripts: list[list[int]] = [[]]
    while scripts:
        branch = Branch(scripts.pop())
        result = play(branch)
        yield branch.probability, result
        scripts += branch.others
