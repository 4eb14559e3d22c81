"""Kernels whose rows are bitwise independent of how many rows are computed together, and the test of it."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.nn import functional

from specbench.engine.capture.lower import Kernels, PackedWeights, lower
from specbench.engine.capture.nodes import copied, finished, inputs_of, value
from specbench.engine.capture.torch_private import packed_linear
from specbench.engine.operations import fused, usable_fused

ROWS = 4  # of a product in attention: multiples of this
SLOTS = 128  # that one product of weights and values adds up; longer caches are added block by block
BLOCK = 64  # the same where a kernel's choice may depend on the number of slots; buffers grow in multiples of it


def lower_invariant(module: GraphModule, packed: PackedWeights, one_token: bool) -> Callable[..., Any]:
    """`lower`, with kernels whose rows do not depend on their number."""
    return lower(module, packed, one_token, INVARIANT)


def linear_of_rows(input: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """`packed_linear` of two rows at least, [..., E]."""
    if input.numel() > input.shape[-1]:
        return packed_linear(input, packed, bias)
    return packed_linear(torch.cat([input, input], -2), packed, bias).narrow(-2, 0, 1)


@torch.library.custom_op("specbench::path_order", mutates_args=())
def path_order(positions: Tensor, visible: Tensor) -> Tensor:
    """Slots [B, L, C] in the order of their positions, for each new token: first those that it may attend to."""
    slots = positions.shape[1]
    late_BC = slots + torch.arange(slots, device=positions.device).expand_as(positions)
    return torch.where(visible, positions.unsqueeze(1), late_BC.unsqueeze(1)).argsort(-1)


@path_order.register_fake
def _(positions: Tensor, visible: Tensor) -> Tensor:
    return torch.empty_like(visible, dtype=torch.long)


def with_path_order(module: GraphModule, positions: int, visible: int, buffers: range) -> GraphModule:
    """A copy of `module` for nodes of trees: attention over the `buffers` goes along each node's path.

    `buffers` and the others are numbers of inputs.
    """
    module = copied(module)
    inputs = inputs_of(module)
    with module.graph.inserting_after(inputs[-1]):
        order = module.graph.call_function(torch.ops.specbench.path_order.default, (inputs[positions], inputs[visible]))
        order.meta["val"] = torch.ops.specbench.path_order(value(inputs[positions]), value(inputs[visible]))
    own = {inputs[index] for index in buffers}
    for node in list(module.graph.nodes):
        if node.target == torch.ops.specbench.attend.default and _reads(node.args[1], own):
            node.target, node.kwargs = attend, {"order_BLC": order}
    return finished(module)


def _reads(node: Any, buffers: set[Node]) -> bool:
    """Whether keys are one of `buffers`, or made of them, as with latents."""
    return node in buffers or any(_reads(one, buffers) for one in node.all_input_nodes)


def attend(
    query_BHLD: Tensor,
    key_BKCD: Tensor,
    value_BKCD: Tensor,
    bias: Tensor | None,
    scale: float,
    sinks_H: Tensor | None = None,
    order_BLC: Tensor | None = None,
) -> Tensor:
    """`kernels.attend`, each row of the result the same in any company.

    `order_BLC` is given if slots are not in the order of positions, as in a tree. The sums then follow each token's own
    path, as if its path had been read by itself.
    """
    if query_BHLD.device.type != "cpu":
        return attend_one_by_one(query_BHLD, key_BKCD, value_BKCD, bias, scale, sinks_H, order_BLC)
    rows, heads, length, channels = query_BHLD.shape
    _, key_heads, slots, _ = key_BKCD.shape
    group = heads // key_heads
    count = group * length
    whole_NRD, part_BKMD = _room(rows, key_heads, count, channels, key_BKCD.dtype)
    part_BKMD.copy_(query_BHLD if group == 1 else query_BHLD.reshape(rows, key_heads, count, channels))
    key_NCD, value_NCD = _flat(key_BKCD), _flat(value_BKCD)
    if bias is None:
        scores_NRC = torch.bmm(whole_NRD, key_NCD.mT).mul_(scale)
    else:
        scores_NRC = torch.baddbmm(_bias(bias, rows, key_heads, group, length), whole_NRD, key_NCD.mT, alpha=scale)
    sinks_NM1 = None
    if sinks_H is not None:
        of_tokens = sinks_H.to(scores_NRC.dtype).view(1, key_heads, group, 1).expand(rows, -1, -1, length)
        sinks_NM1 = of_tokens.reshape(-1, count, 1)
    if order_BLC is None:
        mixed_NRD = _mix(_softmax(scores_NRC, sinks_NM1), value_NCD)
    else:
        order = order_BLC.view(rows, 1, 1, length, slots).expand(-1, key_heads, group, -1, -1)
        mixed_NRD = _mix_in_order(scores_NRC, value_NCD, order.reshape(-1, count, slots), sinks_NM1)
    if mixed_NRD.shape[1] > count:
        mixed_NRD = mixed_NRD.narrow(1, 0, count)
    return mixed_NRD.to(query_BHLD.dtype).contiguous().view(rows, heads, length, -1)


def _flat(states_BKCD: Tensor) -> Tensor:
    """Rows and heads in one axis, N."""
    return states_BKCD[0] if len(states_BKCD) == 1 else states_BKCD.flatten(0, 1)


@lru_cache(maxsize=256)
def _room(rows: int, key_heads: int, count: int, channels: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Zeros [N, R, D], and their first `count` rows as [B, K, count, D], the only ones that are ever written."""
    with torch.inference_mode(False):
        whole = torch.zeros(rows, key_heads, count + -count % ROWS, channels, dtype=dtype)
        return whole.flatten(0, 1), whole[:, :, :count]


def _bias(bias: Tensor, rows: int, key_heads: int, group: int, length: int) -> Tensor:
    """`bias` [1 or B, 1 or H, 1 or L, C] as it is added to [N, R, C]; the rows of filling have any."""
    count, (_, of_heads, of_tokens, slots) = group * length, bias.shape
    if rows == 1 and of_tokens == 1 and (group == 1 or of_heads == 1):
        return bias[0]
    if group == 1 and rows == 1:
        bias_NMC = bias[0]
    else:
        bias_NMC = bias.expand(rows, key_heads * group, length, slots).reshape(-1, count, slots)
    return functional.pad(bias_NMC, (0, 0, 0, -count % ROWS)) if count % ROWS else bias_NMC


def _softmax(scores_NRC: Tensor, sinks_NM1: Tensor | None) -> Tensor:
    """The softmax over slots, and over a sink if there is one; padding rows have arbitrary values."""
    if sinks_NM1 is None:
        return scores_NRC.softmax(-1)
    filled = functional.pad(sinks_NM1, (0, 0, 0, scores_NRC.shape[1] - sinks_NM1.shape[1]))
    return torch.cat([scores_NRC, filled], -1).softmax(-1)[..., :-1].contiguous()


def _mix(weights_NRC: Tensor, value_NCD: Tensor) -> Tensor:
    """Values added up by weight, slot by slot within blocks, and block by block."""
    slots = value_NCD.shape[1]
    if slots <= SLOTS:
        return torch.bmm(weights_NRC, value_NCD)
    mixed_NRD = torch.bmm(weights_NRC[..., :SLOTS], value_NCD[:, :SLOTS])
    for first in range(SLOTS, slots, SLOTS):
        block = slice(first, first + SLOTS)
        mixed_NRD = torch.baddbmm(mixed_NRD, weights_NRC[..., block], value_NCD[:, block])
    return mixed_NRD


def _mix_in_order(scores_NRC: Tensor, value_NCD: Tensor, order_NMC: Tensor, sinks_NM1: Tensor | None = None) -> Tensor:
    """Softmax over slots in the order given, and values added up in it; M of the R rows count."""
    batch, count, slots = order_NMC.shape
    weights_NMC = _softmax(scores_NRC[:, :count].gather(-1, order_NMC), sinks_NM1)
    if slots <= SLOTS:
        # A path's slots rise along it: within a block they are added in that order, with zeros between.
        return torch.bmm(torch.zeros_like(scores_NRC).scatter_(-1, order_NMC, weights_NMC), value_NCD)
    channels = value_NCD.shape[-1]
    index = order_NMC.reshape(batch, -1, 1).expand(-1, -1, channels)
    own_TCD = value_NCD.gather(1, index).view(batch * count, slots, channels)
    own_T1C = weights_NMC.reshape(batch * count, 1, slots)
    return _mix(functional.pad(own_T1C, (0, 0, 0, ROWS - 1)), own_TCD)[:, 0].view(batch, count, channels)


def attend_one_by_one(
    query_BHLD: Tensor,
    key_BKCD: Tensor,
    value_BKCD: Tensor,
    bias: Tensor | None,
    scale: float,
    sinks_H: Tensor | None = None,
    order_BLC: Tensor | None = None,
) -> Tensor:
    """`attend` with each query a batch row of its own, whose sums go along its slots in blocks of a fixed size.

    A step there also has a fixed number of rows. Torch's fused attention would not do: its sums may depend on how many
    slots it is given, and the buffers of CUDA graphs grow from 256 slots to 1,024.
    """
    rows, heads, length, channels = query_BHLD.shape
    slots = key_BKCD.shape[2]
    if order_BLC is None:
        key, states = (
            tensor.unsqueeze(1).expand(-1, length, -1, -1, -1).reshape(rows * length, -1, slots, tensor.shape[-1])
            if rows > 1
            else tensor.expand(length, -1, -1, -1)
            for tensor in (key_BKCD, value_BKCD)
        )
    else:
        key, states = (
            torch.stack([tensor[row][:, order_BLC[row]].transpose(0, 1) for row in range(rows)]).flatten(0, 1)
            for tensor in (key_BKCD, value_BKCD)
        )
    if bias is not None:
        bias = bias.expand(rows, -1, length, -1).transpose(1, 2)
        if order_BLC is not None:
            bias = bias.gather(-1, order_BLC.unsqueeze(2).expand(-1, -1, bias.shape[2], -1))
        bias = bias.reshape(rows * length, -1, 1, slots)
    query = query_BHLD.transpose(1, 2).reshape(rows * length, heads, 1, channels).to(key.dtype)
    if sinks_H is None and "attend_one" in usable_fused.agreeing(query.device):
        mixed = fused.attend_one(query, key, states, bias, scale)
    else:
        mixed = attend_in_blocks(query, key, states, bias, scale, sinks_H)
    mixed = mixed.view(rows, length, heads, -1).transpose(1, 2)
    return mixed.to(query_BHLD.dtype).contiguous()


def attend_in_blocks(
    query_NH1D: Tensor,
    key_NKCD: Tensor,
    value_NKCD: Tensor,
    bias: Tensor | None,
    scale: float,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """Attention of one query a row, in fp32 at least, [N, H, 1, D]: slots are added up block by block, in order.

    Operations have the same shapes whatever the number of slots, and a hidden slot weighs 0. So hidden slots after
    those that are seen, as larger buffers have, change no bit.
    """
    count, heads, _, channels = query_NH1D.shape
    (key_heads, slots), wide = key_NKCD.shape[1:3], torch.promote_types(key_NKCD.dtype, torch.float32)
    query_NKGD = query_NH1D.to(wide).reshape(count, key_heads, -1, channels)
    blocks = []
    for first in range(0, slots, BLOCK):
        part = slice(first, first + BLOCK)
        scores_NKGM = (query_NKGD @ _filled(key_NKCD[:, :, part], wide).mT) * scale
        here = min(BLOCK, slots - first)
        if bias is not None:
            added_NH1M = bias[..., part].to(wide).expand(count, heads, 1, here)
            scores_NKGM[..., :here] += added_NH1M.reshape(count, key_heads, -1, here)
        scores_NKGM[..., here:] = -torch.inf
        blocks.append(scores_NKGM)
    highest_NKG1 = torch.stack([block.amax(-1, keepdim=True) for block in blocks]).amax(0)
    mass_NKG1, mixed_NKGD = torch.zeros_like(highest_NKG1), query_NKGD.new_zeros(())
    if sinks_H is not None:
        sinks_1KG1 = sinks_H.to(wide).view(1, key_heads, -1, 1)
        highest_NKG1 = torch.maximum(highest_NKG1, sinks_1KG1)
        mass_NKG1 = mass_NKG1 + (sinks_1KG1 - highest_NKG1).exp()
    for index, block in enumerate(blocks):
        weights_NKGM = (block - highest_NKG1).exp()
        mass_NKG1 = mass_NKG1 + weights_NKGM.sum(-1, keepdim=True)
        states_NKMD = _filled(value_NKCD[:, :, index * BLOCK : (index + 1) * BLOCK], wide)
        mixed_NKGD = mixed_NKGD + weights_NKGM @ states_NKMD
    return (mixed_NKGD / mass_NKG1).reshape(count, heads, 1, -1).to(query_NH1D.dtype)


def _filled(states_NKMD: Tensor, wide: torch.dtype) -> Tensor:
    """States of a block in the dtype `wide`, filled up with zeros to BLOCK slots."""
    return functional.pad(states_NKMD.to(wide), (0, 0, 0, BLOCK - states_NKMD.shape[2]))


INVARIANT = Kernels(attend, attend, linear_of_rows, large_fp32=(0, 0))
