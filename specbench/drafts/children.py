"""The children of a node of a tree, chosen from its row of q.

Shapes: V tokens of the vocabulary.
"""

from math import inf, isfinite

import torch
from torch import Tensor

from specbench.acceptance import Children
from specbench.sampling import NOT_FINITE, draw


def likeliest(logits_LV: Tensor, count: int) -> list[list[int]]:
    """Of each row up to `count` tokens, the likeliest first. Raises FloatingPointError where a row is not finite."""
    top = logits_LV.topk(min(count, logits_LV.shape[-1]))
    values = top.values.tolist()
    if not all(isfinite(row[0]) for row in values):
        raise FloatingPointError(NOT_FINITE)
    return [
        [token for token, value in zip(tokens, row, strict=True) if value > -inf]
        for tokens, row in zip(top.indices.tolist(), values, strict=True)
    ]


def choose(row_V: Tensor, count: int, how: Children, generator: torch.Generator) -> list[int]:
    """Up to `count` tokens drawn from a row of q, in the order in which they are to be tested.

    replaced: independent draws from `row_V`, in which a token may come again.
    distinct: draws without replacement; fewer where q has fewer tokens. A first draw is `sampling.draw`, so that one
        child is what a chain drafts.

    Raises FloatingPointError where the row is not finite.
    """
    if how == "replaced" or count == 1:
        return [draw(row_V, generator) for _ in range(count)]
    # An exponential race: with clocks of rates q(x), tokens ring in the order of such draws.
    clocks_V = torch.empty(len(row_V), dtype=torch.float64, device=row_V.device).exponential_(generator=generator)
    return likeliest((row_V.double() / clocks_V).log().unsqueeze(0), count)[0]
