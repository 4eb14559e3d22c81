"""Compare a greedy speculative completion with the target's own: they must be equal, token for token, up to rounding.

In bf16 a step over one token and a step over several round differently, and where the target's two best tokens nearly
tie, either may win. To distinguish this from a fault, the position is computed both ways, and the difference counts as
rounding only if the two best tokens are closer than that noise can shift them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specbench.models import Model, Prompt
from specbench.records.schema import DifferenceRecord

# Each of the two tokens may move by the noise, and a pass over gamma+1 tokens is a third way of rounding, not one of
# the two that are compared.
NOISE_FACTOR = 4.0


@dataclass(frozen=True)
class Difference:
    """The first place where two completions differ.

    Attributes:
        position: its index in the generated tokens.
        margin: the target's top-2 margin there, in logits.
        noise: by how much the logits of that row vary with the way of computing it.
    """

    position: int
    margin: float
    noise: float

    @property
    def is_rounding(self) -> bool:
        return self.margin <= NOISE_FACTOR * self.noise

    def to_json(self) -> DifferenceRecord:
        return {
            "position": self.position, "margin": self.margin, "noise": self.noise, "is_rounding": self.is_rounding,
        }  # fmt: skip


def first_difference(
    target: Model, prompt: Prompt, baseline: Sequence[int], speculative: Sequence[int]
) -> Difference | None:
    """The first difference of two completions; None if they are equal."""
    if list(baseline) == list(speculative):
        return None
    shorter = min(len(baseline), len(speculative))
    position = next((i for i in range(shorter) if baseline[i] != speculative[i]), shorter)
    tokens = [*prompt.prefix, *baseline[:position]]
    at_once = target.start(prompt)
    row_at_once_V = at_once.extend(tokens[at_once.length :])[-1, : target.vocabulary_size].float()
    by_step = target.start(prompt)
    for end in range(by_step.length, len(tokens)):
        row_by_step_V = by_step.extend(tokens[end : end + 1])[-1, : target.vocabulary_size].float()
    best = row_by_step_V.topk(2).values
    noise = torch.nan_to_num(row_by_step_V - row_at_once_V, 0.0).abs().max()
    return Difference(position, float(best[0] - best[1]), float(noise))
