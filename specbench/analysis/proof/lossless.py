"""Compare a greedy speculative completion with the target's own: they must be equal, token for token, up to rounding.

In bf16 a step over one token and a step over several round differently, and where the target's two best tokens nearly
tie, either may win. To distinguish this from a fault, the position is computed both ways, and the difference counts as
rounding only if the two best tokens are closer than that noise can shift them. `analysis.proof.departures` decides
about whole completions by the emitted tokens' own margins; here are the factor, the record and the place of the first
difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specbench.engine.session import Model, Prompt
from specbench.records.schema import DifferenceRecord

NOISE_FACTOR = 2.0  # each of the two tokens, the emitted and the best, may move by the noise


@dataclass(frozen=True)
class Difference:
    """The place that decides whether rounding explains the difference of two completions.

    Attributes:
        position: its index in the generated tokens.
        margin: by how many logits the target's best token is above the token in question.
        noise: by how much the logits of that row vary with the way of computing it.
        departures: how many tokens of the completion are not the target's best one, up to this place if it is a fault.
        misplaced_end: the completion ends too early or continues after its end, which no rounding explains.
    """

    position: int
    margin: float
    noise: float
    departures: int = 0
    misplaced_end: bool = False

    @property
    def is_rounding(self) -> bool:
        return not self.misplaced_end and self.margin <= NOISE_FACTOR * self.noise

    def to_json(self) -> DifferenceRecord:
        return {
            "position": self.position, "margin": self.margin, "noise": self.noise, "is_rounding": self.is_rounding,
            "departures": self.departures, "misplaced_end": self.misplaced_end,
        }  # fmt: skip


def first_place(baseline: Sequence[int], speculative: Sequence[int]) -> int:
    """The first index at which two completions differ, or the length of the shorter."""
    shorter = min(len(baseline), len(speculative))
    return next((i for i in range(shorter) if baseline[i] != speculative[i]), shorter)


def first_difference(
    target: Model, prompt: Prompt, baseline: Sequence[int], speculative: Sequence[int]
) -> Difference | None:
    """The first difference of two completions, with the margin of the target's two best tokens; None if they are equal.

    For completions whose own tokens are not known (`certify`, of text); others are tested by `departures.difference`.
    """
    if list(baseline) == list(speculative):
        return None
    position = first_place(baseline, speculative)
    tokens = [*prompt.prefix, *baseline[:position]]
    at_once = target.start(prompt)
    row_at_once_V = at_once.extend(tokens[at_once.length :])[-1, : target.vocabulary_size].float()
    by_step = target.start(prompt)
    for end in range(by_step.length, len(tokens)):
        row_by_step_V = by_step.extend(tokens[end : end + 1])[-1, : target.vocabulary_size].float()
    best = row_by_step_V.topk(2).values
    noise = torch.nan_to_num(row_by_step_V - row_at_once_V, 0.0).abs().max()
    return Difference(position, float(best[0] - best[1]), float(noise))
