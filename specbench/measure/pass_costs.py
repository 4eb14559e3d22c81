"""The cost of a run's passes, in time and in operations, over all passes.

A pass that drafted less than gamma is cheaper than a full pass, so c and v, which are of full passes, do not add up to
the cost of a draft that often proposes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.measure.throughput import rows_of
from specbench.records.schema import WAYS, PassRecord, PromptRecord


@dataclass(frozen=True)
class PassCosts:
    """Mean times of a pass, in mean target steps.

    Tokens per pass over the sum of the three is the measured speedup.
    """

    drafting: float
    checking: float
    accepting: float

    @property
    def total(self) -> float:
        return self.drafting + self.checking + self.accepting


def pass_costs(prompts: Sequence[PromptRecord]) -> PassCosts:
    """The mean pass over the mean step of the baseline, over all prompts of a run; in a batch of a row's share."""
    alone, ours = ([prompt[way] for prompt in prompts] for way in WAYS)
    steps_s = [s / rows for trace in alone for s, rows in zip(trace["steps_s"], rows_of(trace), strict=True)]
    passes = [(one, rows) for trace in ours for one, rows in zip(trace["passes"], rows_of(trace), strict=True)]
    step_s = sum(steps_s) / len(steps_s)
    drafting = sum(a_pass["draft_s"] / rows for a_pass, rows in passes) / len(passes)
    checking = sum(a_pass["verify_s"] / rows for a_pass, rows in passes) / len(passes)
    accepting = sum(a_pass["accept_s"] / rows for a_pass, rows in passes) / len(passes)
    return PassCosts(drafting / step_s, checking / step_s, accepting / step_s)


def operations(passes: Sequence[PassRecord], c_hat: float) -> tuple[float, int]:
    """Arithmetic operations of these passes in target steps, and the tokens that they emitted (Definition 3.10).

    A pass runs M_p on its drafted tokens and one more, and M_q on each drafted token.
    """
    spent = sum(a_pass["drafted"] * (1 + c_hat) + 1 for a_pass in passes)
    return spent, sum(a_pass["emitted"] for a_pass in passes)
