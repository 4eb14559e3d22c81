"""q of drafts that propose one token for certain, or nothing."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.sampling import one_hot


def certain(tokens_L: Sequence[int | None], vocabulary_size: int, device: torch.device) -> Tensor:
    """Rows [L, V] with all mass on the token that is proposed; zeros where none is, so that beta is 0 there."""
    rows_LV = one_hot([token or 0 for token in tokens_L], vocabulary_size, device)
    rows_LV[[place for place, token in enumerate(tokens_L) if token is None]] = 0.0
    return rows_LV
