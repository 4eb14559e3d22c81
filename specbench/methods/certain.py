"""One-hot q, of drafts that look tokens up."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from specbench.sampling import one_hot


def certain(tokens_L: Sequence[int | None], vocabulary_size: int, device: torch.device) -> Tensor:
    """Rows [L, V] with all mass on the proposed token; zeros without a proposal, so that beta is 0 there."""
    rows_LV = one_hot([token or 0 for token in tokens_L], vocabulary_size, device)
    rows_LV[[place for place, token in enumerate(tokens_L) if token is None]] = 0.0
    return rows_LV


def certain_ahead(
    proposals: Sequence[Sequence[int]], length: int, most: int, vocabulary_size: int, device: torch.device
) -> Iterator[Tensor]:
    """`ScoresAhead.score_ahead` for the last `length` positions, from tokens proposed there and before."""
    first = len(proposals) - length
    for ahead in range(most):
        begun = [proposals[place - ahead] if place >= ahead else () for place in range(first, len(proposals))]
        yield certain([one[ahead] if len(one) > ahead else None for one in begun], vocabulary_size, device)
