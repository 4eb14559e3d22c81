"""Signs of a draft by teacher forcing, beside its agreement: the tokens that it proposes, and how sharp q is.

`analysis.findings` reads them. Shapes: L positions of a chunk, V tokens of the vocabulary.
"""

from dataclasses import dataclass, field

from torch import Tensor

from specbench.sampling import Sampling

# q to these powers, normalised: what alpha would be at twice the draft's temperature, and at half.
POWERS = {"flatter": 0.5, "sharper": 2.0}
TINY = 1e-30


@dataclass(frozen=True)
class Signs:
    """One draft along one completion.

    Attributes:
        named: the likeliest token of q at each token; None if the draft proposes nothing.
        sums: at temperatures above 0, over the tokens: the entropies of p and q in nats, and beta with q to each of
            `POWERS`.
    """

    named: list[int | None] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)

    def read(self, p_LV: Tensor, q_LV: Tensor, sampling: Sampling) -> None:
        """Add the positions of a chunk."""
        masses, tokens = q_LV.sum(-1).tolist(), q_LV.argmax(-1).tolist()
        self.named.extend(token if mass > 0 else None for token, mass in zip(tokens, masses, strict=True))
        if sampling.temperature == 0:
            return
        self._add("entropy_p", _entropy(p_LV))
        self._add("entropy_q", _entropy(q_LV))
        for name, power in POWERS.items():
            raised_LV = q_LV.pow(power)
            raised_LV /= raised_LV.sum(-1, keepdim=True).clamp(min=TINY)
            self._add(name, float(p_LV.minimum(raised_LV).sum()))

    def _add(self, name: str, value: float) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + value


def _entropy(rows_LV: Tensor) -> float:
    return float(-(rows_LV * rows_LV.clamp(min=TINY).log()).sum())
