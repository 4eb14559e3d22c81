"""`until=2%`: when a run looks at its interval, and by which level, so that the interval it stops at still covers.

Whoever looks after every prompt and stops at the first interval that is narrow enough stops too often when chance made
the spread small, and the interval covers less often than it says. So a run looks at few numbers of prompts that are set
before it starts, and every look's interval has the level 1 - 0.05 / looks: by Bonferroni's inequality all of them cover
with 95%, whichever look ends the run. This is α-spending (Lan and DeMets 1983, Discrete sequential boundaries for
clinical trials) in equal parts. It holds for all estimates of the run, also for those that it does not stop at. A
confidence sequence would allow a look after every prompt, for an interval that is wider at each.

It takes the prompts as drawn at random from all that could be asked: an ordered task needs `task.shuffle`.
"""

from collections.abc import Sequence
from math import ceil, inf

from specbench.analysis.summary import speedups
from specbench.config.keys import as_share
from specbench.config.schema import RunConfig
from specbench.records.numbers import Stopped
from specbench.records.run_record import PromptRecord
from specbench.stats import LEVEL

FIRST = 20  # prompts before the first look: fewer do not show how much prompts differ
GROWTH = 1.5  # from look to look
BATCHES = 8  # of a group: prompts that decode in turn in the rows of a batch, without and with the draft


def sizes_of_looks(prompts: int, group: int = 1) -> list[int]:
    """The numbers of prompts at which a run over at most `prompts` looks: multiples of `group`, and all of them."""
    sizes, size = {prompts}, float(FIRST)
    while size < prompts:
        sizes.add(min(prompts, ceil(round(size) / group) * group))
        size *= GROWTH
    return sorted(sizes)


class Looks:
    """The looks of a run at the interval of its speedup, as decoded."""

    def __init__(self, within: float, prompts: int, group: int) -> None:
        """`within`: the half width, as a share of the speedup; `group`: prompts that are decoded together."""
        self.within, self.sizes = within, sizes_of_looks(prompts, group)
        self.level = 1 - (1 - LEVEL) / len(self.sizes)
        self.half_widths: list[float] = []  # one per look, as a share of the speedup

    @staticmethod
    def of(config: RunConfig, prompts: int) -> "Looks | None":
        """The looks of a run over so many prompts; None without `until`. Prompts of a batch are decoded in groups."""
        within = None if config.until is None else as_share(config.until)
        group = 1 if config.batch == 1 else BATCHES * config.batch
        return None if within is None else Looks(within, prompts, group)

    def see(self, prompts: Sequence[PromptRecord]) -> bool:
        """Take the looks that are due after these first prompts of the task; whether the run ends, at `prompts`.

        A look depends only on its own prompts, so that a run that resumes takes the same looks again.
        """
        while not self.ended and (size := self.sizes[len(self.half_widths)]) <= len(prompts):
            self.half_widths.append(self._half_width(prompts[:size]))
        return self.ended

    @property
    def ended(self) -> bool:
        """Whether the last look was narrow enough, or was at all prompts."""
        narrow = bool(self.half_widths) and self.half_widths[-1] <= self.within
        return narrow or len(self.half_widths) == len(self.sizes)

    @property
    def prompts(self) -> int:
        """The prompts of the last look."""
        return self.sizes[len(self.half_widths) - 1]

    def plan(self, shuffled: bool) -> str:
        """The looks in words, before the run."""
        sizes = ", ".join(map(str, self.sizes))
        order = "" if shuffled else "; the prompts come in order, and task.shuffle=0 draws their order at random"
        return f"until={100 * self.within:g}%: looks after {sizes} prompts, each at {100 * self.level:.2f}%{order}"

    @property
    def now(self) -> str:
        """The half width of the last look, for the progress."""
        return f"speedup ±{100 * self.half_widths[-1]:.1f}%" if self.half_widths else ""

    def columns(self) -> Stopped:
        """Their columns in a record's summary."""
        return {
            "until": self.within,
            "looks": len(self.half_widths),
            "looks_planned": len(self.sizes),
            "level": self.level,
            "prompts_offered": self.sizes[-1],
        }

    def _half_width(self, prompts: Sequence[PromptRecord]) -> float:
        found = speedups(prompts, level=self.level)
        value, low, high = (found[key] for key in ("speedup_measured", "speedup_low", "speedup_high"))
        return inf if value is None or low is None or high is None else (high - low) / (2 * value)
