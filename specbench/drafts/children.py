"""The children of a node of a tree, chosen from its row of q.

Shapes: V tokens of the vocabulary.
"""

import torch
from torch import Tensor

from specbench.acceptance import Children
from specbench.sampling import NOT_FINITE, draw


def choose(row_V: Tensor, count: int, how: Children, generator: torch.Generator) -> list[int]:
    """Up to `count` tokens, in the order in which they are to be tested.

    fixed: the likeliest; `row_V` may be logits.
    replaced: independent draws from `row_V`, in which a token may come again.
    distinct: draws without replacement; fewer where q has fewer tokens. A first draw is `sampling.draw`, so that one
        child is what a chain drafts.

    Raises FloatingPointError where the row is not finite.
    """
    if how == "replaced" or (how == "distinct" and count == 1):
        return [draw(row_V, generator) for _ in range(count)]
    if how == "distinct":  # an exponential race: with clocks of rates q(x), tokens ring in the order of such draws
        clocks_V = torch.empty(len(row_V), dtype=torch.float64, device=row_V.device).exponential_(generator=generator)
        row_V = (row_V.double() / clocks_V).log()
    first = row_V.topk(min(count, len(row_V)))
    if not bool(first.values[0].isfinite()):
        raise FloatingPointError(NOT_FINITE)
    tokens: list[int] = first.indices[first.values > -torch.inf].tolist()
    return tokens
