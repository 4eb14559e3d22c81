"""EAGLE's layer along whole texts, several steps from its own predictions, all places of the text at once.

Step s at entry j is what drafting gives there for a proposal that began s entries before: entries up to j - s hold
the target's features, the s after them what the steps before predicted. It is the training-time test of EAGLE-3
(2503.01840, section 3.2), and what scores tokens further ahead along a text.

Shapes: B rows, T entries, F numbers of a target's feature, D width, H query heads, K key heads, E channels.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.engine.beside.declared import Source
from specbench.methods.eagle.network import Eagle


def unrolled(
    eagle: Eagle, features_BTF: Tensor, embedded_BTD: Tensor, source: Source | None, steps: int
) -> Iterator[Tensor]:
    """Predicted features [B, T, D] of step 0, 1, ... `steps` - 1.

    Entries before the step's number have no meaning: no proposal began so many entries before them.
    """
    rows, length = embedded_BTD.shape[:2]
    positions_BT = torch.arange(length, device=embedded_BTD.device).expand(rows, -1)
    states_BTD = eagle.fuse(features_BTF)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for step in range(steps):

        def attend(query: Tensor, key: Tensor, value: Tensor, step: int = step) -> Tensor:
            keys.append(_each_head(key, query.shape[1]))
            values.append(_each_head(value, query.shape[1]))
            return _attended(eagle, query, keys, values, step)

        states_BTD = eagle(states_BTD, embedded_BTD, positions_BT, attend, source)
        yield states_BTD
        states_BTD = _later(states_BTD, 1, 1)


def _attended(eagle: Eagle, query: Tensor, keys: list[Tensor], values: list[Tensor], step: int) -> Tensor:
    """Attention to the entries up to `step` before, of step 0, and to one entry of each later step: the diagonals."""
    scale, length = eagle.shape.layer.scale, query.shape[2]
    numbers = torch.arange(length, device=query.device)
    distance_TT = numbers[:, None] - numbers
    mask_TT = torch.zeros(length, length, device=query.device, dtype=query.dtype)
    mask_TT = mask_TT.masked_fill(distance_TT < step, -torch.inf)
    if (bias := eagle.layer.bias_by_distance(distance_TT)) is not None:
        mask_TT = mask_TT + bias
    if step == 0:
        return F.scaled_dot_product_attention(query, keys[0], values[0], mask_TT, scale=scale)
    scores = [query @ keys[0].transpose(-1, -2) * scale + mask_TT]
    near = eagle.layer.bias_by_distance(torch.arange(step, device=query.device))
    for of in range(1, step + 1):
        score = (query * _later(keys[of], step - of, 2)).sum(-1, keepdim=True) * scale
        scores.append(score if near is None else score + near[:, step - of, None, None])
    weights = torch.cat(scores, -1).softmax(-1, dtype=torch.float32).to(query.dtype)
    mixed = weights[..., :length] @ values[0]
    for of in range(1, step + 1):
        mixed = mixed + weights[..., length + of - 1, None] * _later(values[of], step - of, 2)
    return mixed


def _later(states: Tensor, by: int, axis: int) -> Tensor:
    """Entry j holds what entry j - `by` held; the first entries hold zeros."""
    if by == 0:
        return states
    length = states.shape[axis]
    kept = states.narrow(axis, 0, max(0, length - by))
    return torch.cat([torch.zeros_like(states.narrow(axis, 0, min(by, length))), kept], axis)


def _each_head(states: Tensor, heads: int) -> Tensor:
    """Key heads, once for each query head that shares them."""
    return states.repeat_interleave(heads // states.shape[1], 1)
