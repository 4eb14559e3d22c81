"""The children of the nodes of one level of a tree, chosen from their rows of q, all nodes at once.

Shapes: L nodes, K children, V tokens of the vocabulary.
"""

from collections.abc import Sequence
from math import inf, isfinite

import torch
from torch import Tensor

from specbench.acceptance import Children
from specbench.sampling import NOT_FINITE


def likeliest(logits_LV: Tensor, count: int) -> list[list[int]]:
    """Up to `count` tokens of each row, the likeliest first. Raises FloatingPointError if a row is not finite."""
    top = logits_LV.topk(min(count, logits_LV.shape[-1]))
    values = top.values.tolist()
    if not all(isfinite(row[0]) for row in values):
        raise FloatingPointError(NOT_FINITE)
    return [
        [token for token, value in zip(tokens, row, strict=True) if value > -inf]
        for tokens, row in zip(top.indices.tolist(), values, strict=True)
    ]


def choose(q_LV: Tensor, counts: Sequence[int], how: Children, generator: torch.Generator) -> list[list[int]]:
    """Choose up to `counts[i]` tokens from row i, in the order in which they will be tested.

    They are drawn by inverting distribution functions as `sampling.draw` does; one child of one node is a chain's
    token.

    - replaced: independent draws, in which a token may repeat.
    - distinct: draws without replacement, each from the rest of its row; fewer if q has fewer tokens.

    Raises:
        FloatingPointError: a row is not finite.
    """
    device, most = q_LV.device, max(counts)
    if how == "replaced":
        drawn_LK = _draw(q_LV, most, generator)
    else:
        left_LV, columns = q_LV.to(torch.float64, copy=True), list[Tensor]()
        places = torch.arange(len(counts), device=device)
        for rank in range(most):
            if rank:  # of the nodes that have so many children
                places = torch.tensor([place for place, count in enumerate(counts) if count > rank], device=device)
            column_L = torch.full((len(counts),), NONE_LEFT, device=device)
            column_L[places] = _draw(left_LV[places], 1, generator)[:, 0]
            columns.append(column_L)
            if rank + 1 < most:
                left_LV.scatter_(-1, column_L.clamp(min=0).unsqueeze(-1), 0.0)
        drawn_LK = torch.stack(columns, -1)
    drawn = drawn_LK.tolist()
    if any(tokens[0] < 0 for tokens in drawn):
        raise FloatingPointError(NOT_FINITE)
    return [[token for token in tokens[:count] if token >= 0] for tokens, count in zip(drawn, counts, strict=True)]


NONE_LEFT = -1


def _draw(weights_LV: Tensor, times: int, generator: torch.Generator) -> Tensor:
    """Tokens [L, times] drawn independently; NONE_LEFT where a row has no mass, or is not finite."""
    cumulative_LV = weights_LV.cumsum(-1, dtype=torch.float64)
    mass_L1 = cumulative_LV[:, -1:]
    uniform_LK = torch.rand(
        len(weights_LV), times, generator=generator, device=weights_LV.device, dtype=torch.float64
    )  # fmt: skip
    found_LK = torch.searchsorted(cumulative_LV, uniform_LK * mass_L1, right=True)
    return torch.where(mass_L1 > 0, found_LK, NONE_LEFT)  # NaN is not above 0
