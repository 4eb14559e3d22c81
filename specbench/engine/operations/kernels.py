"""The kernels of a simplified graph, which replace longer chains of operations. Plain functions of tensors.

The choices for CPU are measured (2 cores, AVX-512): attention of one token is 3 to 8 times as fast in fp32 as in bf16,
whose kernel repacks the whole cache at every call; oneDNN with weights laid out in advance costs about 11 us a call,
where the plain bf16 product costs 15 us and up, and its time hardly grows from 1 to 8 tokens, so that verifying gamma +
1 tokens costs as much as one step.

Shapes: B rows, H query heads, K key heads, L new tokens, C slots of a cache, D channels of a head, E channels of the
model.
"""

import torch
from torch import Tensor
from torch.nn import functional

LONG = 32  # tokens of a row: from here on CPU the fused kernel beats three plain products


def attend(
    query_BHLD: Tensor,
    key_BKCD: Tensor,
    value_BKCD: Tensor,
    bias: Tensor | None,
    scale: float,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """Softmax attention, [B, H, L, D] in the query's dtype. `bias` [1 or B, 1 or H, L, C] is added to the scores.

    Keys and values may be wider than the query (fp32 beside bf16); then the sums are done in theirs. A sink is a score
    that takes part in the softmax, and mixes nothing in.
    """
    if sinks_H is not None:
        return _attend_with_sinks(query_BHLD, key_BKCD, value_BKCD, bias, scale, sinks_H)
    dtype = query_BHLD.dtype
    rows, heads, length, channels = query_BHLD.shape
    key_heads = key_BKCD.shape[1]
    if length >= LONG and query_BHLD.device.type == "cpu":
        return _attend_to_prompt(query_BHLD, key_BKCD, value_BKCD, bias, scale)
    query = query_BHLD.to(key_BKCD.dtype)
    if heads != key_heads:
        # Query heads that share a key head are rows of one product: no copy of the cache is made for each.
        group = heads // key_heads
        query = query.reshape(rows, key_heads, group * length, channels)
        if bias is not None and bias.shape[1] != 1:
            bias = bias.reshape(len(bias), key_heads, group * length, -1)
        elif bias is not None and length > 1:
            bias = bias.repeat(1, 1, group, 1)
    narrow = dtype == key_BKCD.dtype == torch.bfloat16
    if length == 1 or bias is None or rows > 1 or narrow or query.device.type != "cpu":
        mixed = functional.scaled_dot_product_attention(query, key_BKCD, value_BKCD, bias, scale=scale)
    else:  # several tokens of one row: on CPU three plain products beat the fused kernel
        scores = torch.baddbmm(bias.expand(1, key_heads, -1, -1)[0], query[0], key_BKCD[0].transpose(1, 2), alpha=scale)
        mixed = torch.bmm(scores.softmax(-1), value_BKCD[0]).unsqueeze(0)
    # A GPU's fused kernels return [B, L, H, D] seen as [B, H, L, D]: no view of merged heads.
    return mixed.to(dtype).reshape(rows, heads, length, value_BKCD.shape[-1])


def _attend_to_prompt(
    query_BHLD: Tensor, key_BKCD: Tensor, value_BKCD: Tensor, bias: Tensor | None, scale: float
) -> Tensor:
    """`attend` for many tokens: the fused kernel makes no scores of all slots at once, and no copy of a key head."""
    query, shared = query_BHLD.to(key_BKCD.dtype), query_BHLD.shape[1] != key_BKCD.shape[1]
    mixed = functional.scaled_dot_product_attention(query, key_BKCD, value_BKCD, bias, scale=scale, enable_gqa=shared)
    return mixed.to(query_BHLD.dtype)


def _attend_with_sinks(
    query_BHLD: Tensor, key_BKCD: Tensor, value_BKCD: Tensor, bias: Tensor | None, scale: float, sinks_H: Tensor
) -> Tensor:
    rows, heads, length, channels = query_BHLD.shape
    key_heads = key_BKCD.shape[1]
    query = query_BHLD.to(key_BKCD.dtype).reshape(rows, key_heads, -1, channels)
    scores = (query @ key_BKCD.mT).view(rows, heads, length, -1) * scale
    if bias is not None:
        scores = scores + bias
    sinks = sinks_H.to(scores.dtype).view(1, heads, 1, 1).expand(rows, -1, length, -1)
    weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    mixed = weights.reshape(rows, key_heads, heads // key_heads * length, -1) @ value_BKCD
    return mixed.view(rows, heads, length, -1).to(query_BHLD.dtype)


def attend_alone(query_BHLD: Tensor, key_BHCD: Tensor, value_BHCD: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """`attend` for one token with a key head to each query head."""
    query = query_BHLD.to(key_BHCD.dtype)
    mixed = functional.scaled_dot_product_attention(query, key_BHCD, value_BHCD, bias, scale=scale)
    return mixed.to(query_BHLD.dtype)


def wide_norm(x: Tensor, size: list[int], weight: Tensor, epsilon: float, centred: bool) -> Tensor:
    """A root mean square norm, or with `centred` a layer norm, weighed in fp32 and rounded last; `weight` is fp32."""
    norm = (
        torch.layer_norm(x.float(), size, weight, None, epsilon)
        if centred
        else torch.rms_norm(x.float(), size, weight, epsilon)
    )
    return norm.to(x.dtype)


def write(buffer_BKCD: Tensor, at: Tensor, states_BKLD: Tensor) -> None:
    """Put the newest keys or values into the slots `at` [B * L] of a cache, row by row."""
    states_BKLD = states_BKLD.to(buffer_BKCD.dtype)
    if len(states_BKLD) == 1:
        buffer_BKCD.index_copy_(2, at, states_BKLD)
    else:
        buffer_BKCD.scatter_(2, at.view(len(states_BKLD), 1, -1, 1).expand_as(states_BKLD), states_BKLD)


def write_pair(
    key_buffer_BKCD: Tensor, value_buffer_BKCD: Tensor, at: Tensor, keys_BKLD: Tensor, values_BKLD: Tensor
) -> None:
    """`write` of the newest keys and of the newest values of one row."""
    if key_buffer_BKCD.is_cuda:
        from specbench.engine.operations import triton as triton_kernels

        triton_kernels.write_pair(key_buffer_BKCD, value_buffer_BKCD, at, keys_BKLD, values_BKLD)
        return
    write(key_buffer_BKCD, at, keys_BKLD)
    write(value_buffer_BKCD, at, values_BKLD)
