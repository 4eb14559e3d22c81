"""Signs of a draft by teacher forcing, beside its agreement: the tokens that it proposes, and how sharp q is.

`analysis.findings` reads them. Shapes: L positions of a chunk, V tokens of the vocabulary.
"""

from torch import Tensor

from specbench.records.draft_signs import Signs
from specbench.sampling import Sampling

# q to these powers, normalised: what alpha would be at twice the draft's temperature, and at half.
POWERS = {"flatter": 0.5, "sharper": 2.0}
TINY = 1e-30


def add_signs(signs: Signs, p_LV: Tensor, q_LV: Tensor, sampling: Sampling) -> None:
    """Add the positions of a chunk to the signs of a completion."""
    masses, tokens = q_LV.sum(-1).tolist(), q_LV.argmax(-1).tolist()
    signs.named.extend(token if mass > 0 else None for token, mass in zip(tokens, masses, strict=True))
    if sampling.temperature == 0:
        return
    sums = {"entropy_p": _entropy(p_LV), "entropy_q": _entropy(q_LV)}
    for name, power in POWERS.items():
        raised_LV = q_LV.pow(power)
        raised_LV /= raised_LV.sum(-1, keepdim=True).clamp(min=TINY)
        sums[name] = float(p_LV.minimum(raised_LV).sum())
    for name, value in sums.items():
        signs.sums[name] = signs.sums.get(name, 0.0) + value


def _entropy(rows_LV: Tensor) -> float:
    return float(-(rows_LV * rows_LV.clamp(min=TINY).log()).sum())
