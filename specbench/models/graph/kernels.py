"""What a simplified graph calls in the place of longer chains of operations. Plain functions of tensors.

The choices for CPU are measured ones (2 cores, AVX-512): attention of one token is 3 to 8 times as fast in fp32 as in
bf16, whose kernel repacks the whole cache at every call; oneDNN with weights laid out in advance costs about 11 us a
call, where the plain bf16 product costs 15 us and up, and its time hardly grows from 1 to 8 tokens, so that checking
gamma + 1 tokens costs what one step costs.

Shapes: H query heads, K key heads, L new tokens, C positions of a cache, D channels of a head, E channels of the model.
"""

import torch
from torch import Tensor
from torch.nn import functional


def attend(query_1HLD: Tensor, key_1KCD: Tensor, value_1KCD: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Softmax attention, [1, H, L, D] in the query's dtype. `bias` [1, 1 or H, L, C] is added to the scores.

    Keys and values may be wider than the query (fp32 beside bf16); then the sums are done in theirs.
    """
    dtype = query_1HLD.dtype
    _, heads, length, channels = query_1HLD.shape
    key_heads = key_1KCD.shape[1]
    query = query_1HLD.to(key_1KCD.dtype)
    if heads != key_heads:
        # Query heads that share a key head are rows of one product: no copy of the cache is made for each.
        group = heads // key_heads
        query = query.reshape(1, key_heads, group * length, channels)
        if bias is not None and bias.shape[1] != 1:
            bias = bias.reshape(1, key_heads, group * length, -1)
        elif bias is not None and length > 1:
            bias = bias.repeat(1, 1, group, 1)
    if length == 1 or bias is None or query.device.type != "cpu" or dtype == key_1KCD.dtype == torch.bfloat16:
        mixed = functional.scaled_dot_product_attention(query, key_1KCD, value_1KCD, bias, scale=scale)
    else:  # a few rows: on CPU three plain products beat the fused kernel
        scores = torch.baddbmm(bias.expand(1, key_heads, -1, -1)[0], query[0], key_1KCD[0].transpose(1, 2), alpha=scale)
        mixed = torch.bmm(scores.softmax(-1), value_1KCD[0]).unsqueeze(0)
    return mixed.to(dtype).view(1, heads, length, channels)


def attend_alone(query_1HLD: Tensor, key_1HCD: Tensor, value_1HCD: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """`attend` for one token with a key head to each query head."""
    query = query_1HLD.to(key_1HCD.dtype)
    mixed = functional.scaled_dot_product_attention(query, key_1HCD, value_1HCD, bias, scale=scale)
    return mixed.to(query_1HLD.dtype)


def write(buffer_1KCD: Tensor, at_L: Tensor, states_1KLD: Tensor) -> None:
    """Put the newest keys or values at positions `at_L` of a cache."""
    buffer_1KCD.index_copy_(2, at_L, states_1KLD.to(buffer_1KCD.dtype))


def packed_linear(input_1LE: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b with W as oneDNN laid it out."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(input_1LE, packed, bias, "none", [], "")
    return product
