"""The kernels of `fused` in Triton. Imported only on a GPU, and in a test by Triton's own interpreter.

Nothing here is a copy of a library's kernel. On a GPU that has it a kernel starts before its predecessor has drained
(programmatic dependent launch): it waits for that, and lets its successor start, before it reads anything.
"""

import os
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, empty, empty_like

HOPPER = 9  # the first compute capability with programmatic dependent launch
SLOTS = 64  # of a cache that a program of `write_attend` reads at a time
COLUMNS = 1024  # of a row that a program of `gated` computes
NUMBERS = 8192  # weights that a program of `norm_linear` reads
KINDS = {"relu": 0, "silu": 1, "gelu": 2, "gelu_tanh": 3}
NO_ACTIVATION = -1
SMALLEST = {True: 1.1920928955078125e-07, False: 7.8125e-03}  # default epsilon: of float32, of bfloat16


@lru_cache
def _starts_early(device: torch.device) -> bool:
    """Whether kernels on `device` may start before their predecessor has ended; SPECBENCH_PDL=0 turns it off."""
    return (
        device.type == "cuda"
        and _knows_early_starts()
        and os.environ.get("SPECBENCH_PDL") != "0"
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device)[0] >= HOPPER
    )


def _knows_early_starts() -> bool:
    """Whether this Triton has the instructions, and the option of a launch."""
    if not all(hasattr(tl.extra.cuda, word) for word in ("gdc_wait", "gdc_launch_dependents")):
        return False
    from triton.backends.nvidia.compiler import CUDAOptions

    return "launch_pdl" in getattr(CUDAOptions, "__dataclass_fields__", {})


def early(x: Tensor) -> dict[str, Any]:
    """The arguments of a launch that say so."""
    return {"EARLY": True, "launch_pdl": True} if _starts_early(x.device) else {"EARLY": False}


@triton.jit
def wait_for_predecessor(EARLY: tl.constexpr):
    """Let the next kernel start, and wait for what the kernel before has written."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


def add_norm(x: Tensor, y: Tensor, weight: Tensor, epsilon: float | None) -> tuple[Tensor, Tensor]:
    """x + y, and its RMS norm: `fused.add_norm` in one kernel."""
    x, y, width = x.contiguous(), y.contiguous(), x.shape[-1]
    whole, normed = empty_like(x), empty_like(x)
    _add_norm[(x.numel() // width,)](
        x, y, weight, whole, normed, width, _least(x, epsilon), BLOCK=triton.next_power_of_2(width), num_warps=8,
        **early(x),
    )  # fmt: skip
    return whole, normed


def norm_linear(
    x: Tensor, y: Tensor, norm: Tensor, epsilon: float | None, weight: Tensor, bias: Tensor | None,
    activation: str | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """x + y of a few tokens and a linear map of its RMS norm, with its activation.

    Each program maps one token to a block of outputs and normalises its row again, which costs less than a launch. The
    weights of a block are read from memory once: the programs of all tokens run side by side and find them in L2.
    """
    x, y, width, outputs = x.contiguous(), y.contiguous(), x.shape[-1], len(weight)
    whole, made = empty_like(x), empty((*x.shape[:-1], outputs), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(width)
    rows = max(1, NUMBERS // block)
    _norm_linear[(x.numel() // width, triton.cdiv(outputs, rows))](
        x, y, norm, weight, weight if bias is None else bias, whole, made, width, outputs, _least(x, epsilon),
        BLOCK=block, ROWS=rows, KIND=NO_ACTIVATION if activation is None else KINDS[activation],
        HAS_BIAS=bias is not None, **early(x),
    )  # fmt: skip
    return whole, made


def write_attend(
    query: Tensor, key_buffer: Tensor, value_buffer: Tensor, at: Tensor, keys: Tensor, values: Tensor,
    bias: Tensor | None, scale: float,
) -> Tensor:  # fmt: skip
    """Write the keys and values of one token into their slot, and attend to all slots: `fused.write_attend`."""
    return _attended(query, key_buffer, value_buffer, at, keys, values, bias, scale, writes=True)


def attend_one(query: Tensor, key_buffer: Tensor, value_buffer: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """One token of each row attends to slots that hold all that it sees, such as an encoder's: `fused.attend_one`.

    Slots are added up in blocks of SLOTS, the first block first: hidden slots after those that are seen change no bit.
    """
    return _attended(query, key_buffer, value_buffer, query, query, query, bias, scale, writes=False)


def _attended(
    query: Tensor, key_buffer: Tensor, value_buffer: Tensor, at: Tensor, keys: Tensor, values: Tensor,
    bias: Tensor | None, scale: float, writes: bool,
) -> Tensor:  # fmt: skip
    count, heads, _, channels = query.shape
    _, key_heads, slots, value_channels = value_buffer.shape
    made = empty((count, heads, 1, value_channels), dtype=query.dtype, device=query.device)
    per_row, per_head = (0 if bias is None or bias.shape[axis] == 1 else bias.stride(axis) for axis in (0, 1))
    _write_attend[(heads, count)](
        query, key_buffer, value_buffer, at, keys, values, query if bias is None else bias, made, slots, channels,
        value_channels, heads // key_heads, scale, query.stride(0), query.stride(1), query.stride(3),
        *key_buffer.stride(), *value_buffer.stride(), keys.stride(1), keys.stride(3), values.stride(1),
        values.stride(3), per_row, per_head, 0 if bias is None else bias.stride(3),
        BLOCK=triton.next_power_of_2(channels), WIDE=triton.next_power_of_2(value_channels), AT_ONCE=SLOTS,
        HAS_BIAS=bias is not None, WRITES=writes, **early(query),
    )  # fmt: skip
    return made


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions of one row: `fused.rotated`. `x` [1, H, L, D] may be a part of a merged row."""
    _, heads, count, channels = x.shape
    made = empty((1, heads, count, channels), dtype=x.dtype, device=x.device)
    cosine, sine = (part.expand(1, 1, count, channels) for part in (cosine, sine))
    _rotated[(count, heads)](
        x, cosine, sine, made, channels, *x.stride()[1:], *cosine.stride()[2:], *sine.stride()[2:], *made.stride()[1:],
        HALF=channels // 2, BLOCK=triton.next_power_of_2(channels), **early(x),
    )  # fmt: skip
    return made


def write_pair(key_buffer: Tensor, value_buffer: Tensor, at: Tensor, keys: Tensor, values: Tensor) -> None:
    """Write the newest keys and values into their buffers. The states may be parts of merged rows."""
    _, heads, count, channels = keys.shape
    _write_pair[(count, heads)](
        key_buffer, value_buffer, at, keys, values, channels, *key_buffer.stride()[1:], *value_buffer.stride()[1:],
        *keys.stride()[1:], *values.stride()[1:], BLOCK=triton.next_power_of_2(channels), **early(keys),
    )  # fmt: skip


def _least(x: Tensor, epsilon: float | None) -> float:
    return SMALLEST[x.element_size() == 4] if epsilon is None else epsilon


def gated(activation: str, x: Tensor, gate: Tensor) -> Tensor:
    """activation(x) times the gate: `fused.gated`. `x` and `gate` may be parts of one merged row."""
    width = x.shape[-1]
    rows_x, rows_gate = x.reshape(-1, width), gate.reshape(-1, width)
    made = empty(x.shape, dtype=x.dtype, device=x.device)
    grid = (len(rows_x), triton.cdiv(width, COLUMNS))
    _gated[grid](
        rows_x, rows_gate, made, width, rows_x.stride(0), rows_gate.stride(0), KIND=KINDS[activation], BLOCK=COLUMNS,
        **early(x),
    )  # fmt: skip
    return made


@triton.jit
def _add_norm(x, y, weight, whole, normed, width, epsilon, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    wait_for_predecessor(EARLY)
    row = tl.program_id(0).to(tl.int64) * width
    at = tl.arange(0, BLOCK)
    inside = at < width
    left = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(y + row + at, mask=inside, other=0.0).to(tl.float32)
    rounded = (left + right).to(whole.dtype.element_ty)
    tl.store(whole + row + at, rounded, mask=inside)
    wide = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / width + epsilon)
    factor = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row + at, (wide * scale * factor).to(normed.dtype.element_ty), mask=inside)


@triton.jit
def activated(z, KIND: tl.constexpr):
    """One of KINDS of fp32 numbers."""
    if KIND == 0:
        z = tl.maximum(z, 0.0)
    elif KIND == 1:
        z = z * tl.sigmoid(z)
    elif KIND == 2:
        z = 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))
    else:  # tanh(t) is 2 sigmoid(2 t) - 1
        z = z * tl.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))
    return z


@triton.jit
def _gated(x, gate, made, width, x_stride, gate_stride, KIND: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    wait_for_predecessor(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    z = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(gate + row * gate_stride + at, mask=inside, other=0.0).to(tl.float32)
    product = activated(z, KIND).to(made.dtype.element_ty).to(tl.float32) * factor
    tl.store(made + row * width + at, product.to(made.dtype.element_ty), mask=inside)


@triton.jit
def _norm_linear(
    x, y, norm, weight, bias, whole, made, width, outputs, epsilon,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr, HAS_BIAS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_predecessor(EARLY)
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    left = tl.load(x + token * width + at, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(y + token * width + at, mask=inside, other=0.0).to(tl.float32)
    rounded = (left + right).to(whole.dtype.element_ty)
    if tl.program_id(1) == 0:
        tl.store(whole + token * width + at, rounded, mask=inside)
    wide = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / width + epsilon)
    factor = tl.load(norm + at, mask=inside, other=0.0).to(tl.float32)
    normed = (wide * scale * factor).to(made.dtype.element_ty).to(tl.float32)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    there = row < outputs
    places = weight + row[:, None].to(tl.int64) * width + at[None, :]
    block = tl.load(places, mask=there[:, None] & inside[None, :], other=0.0).to(tl.float32)
    total = tl.sum(block * normed[None, :], 1)
    if HAS_BIAS:
        total += tl.load(bias + row, mask=there, other=0.0).to(tl.float32)
    if KIND >= 0:
        total = activated(total.to(made.dtype.element_ty).to(tl.float32), KIND)
    tl.store(made + token * outputs + row, total.to(made.dtype.element_ty), mask=there)


@triton.jit
def _write_pair(
    key_buffer, value_buffer, at, keys, values, channels,
    kb_head, kb_slot, kb_channel, vb_head, vb_slot, vb_channel,
    k_head, k_token, k_channel, v_head, v_token, v_channel, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_predecessor(EARLY)
    token, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    slot = tl.load(at + token)
    channel = tl.arange(0, BLOCK)
    inside = channel < channels
    key = tl.load(keys + head * k_head + token * k_token + channel * k_channel, mask=inside)
    value = tl.load(values + head * v_head + token * v_token + channel * v_channel, mask=inside)
    to_key = key_buffer + head * kb_head + slot * kb_slot + channel * kb_channel
    to_value = value_buffer + head * vb_head + slot * vb_slot + channel * vb_channel
    tl.store(to_key, key.to(key_buffer.dtype.element_ty), mask=inside)
    tl.store(to_value, value.to(value_buffer.dtype.element_ty), mask=inside)


@triton.jit
def _write_attend(
    query, key_buffer, value_buffer, at, keys, values, bias, made, slots, channels, value_channels, group, scale,
    q_row, q_head, q_channel, kb_row, kb_head, kb_slot, kb_channel, vb_row, vb_head, vb_slot, vb_channel,
    k_head, k_channel, v_head, v_channel, b_row, b_head, b_slot, BLOCK: tl.constexpr, WIDE: tl.constexpr,
    AT_ONCE: tl.constexpr, HAS_BIAS: tl.constexpr, WRITES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_predecessor(EARLY)
    head, turn = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    key_head = head // group
    channel, wide = tl.arange(0, BLOCK), tl.arange(0, WIDE)
    inside, within = channel < channels, wide < value_channels
    asked = tl.load(query + turn * q_row + head * q_head + channel * q_channel, mask=inside, other=0.0)
    # As `attend` computes it: the query in the dtype of the cache, sums in fp32.
    asked = asked.to(key_buffer.dtype.element_ty).to(tl.float32)
    of_keys = key_buffer + turn * kb_row + key_head * kb_head
    of_values = value_buffer + turn * vb_row + key_head * vb_head
    if WRITES:
        slot = tl.load(at)
        key = tl.load(keys + key_head * k_head + channel * k_channel, mask=inside, other=0.0)
        value = tl.load(values + key_head * v_head + wide * v_channel, mask=within, other=0.0)
        key, value = key.to(key_buffer.dtype.element_ty), value.to(value_buffer.dtype.element_ty)
        if head % group == 0:  # the others of its heads do not read what this one writes
            tl.store(of_keys + slot * kb_slot + channel * kb_channel, key, mask=inside)
            tl.store(of_values + slot * vb_slot + wide * vb_channel, value, mask=within)
    highest = -float("inf")
    mass = 0.0
    mixed = tl.zeros((WIDE,), tl.float32)
    for first in range(0, slots, AT_ONCE):
        place = first + tl.arange(0, AT_ONCE)
        there = place < slots
        seen_keys = tl.load(
            of_keys + place[:, None] * kb_slot + channel[None, :] * kb_channel,
            mask=there[:, None] & inside[None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        seen_values = tl.load(
            of_values + place[:, None] * vb_slot + wide[None, :] * vb_channel,
            mask=there[:, None] & within[None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        if WRITES:
            newest = (place == slot)[:, None]
            seen_keys = tl.where(newest, key.to(tl.float32)[None, :], seen_keys)
            seen_values = tl.where(newest, value.to(tl.float32)[None, :], seen_values)
        score = tl.sum(seen_keys * asked[None, :], 1) * scale
        if HAS_BIAS:
            score += tl.load(bias + turn * b_row + head * b_head + place * b_slot, mask=there, other=0.0).to(tl.float32)
        score = tl.where(there, score, -float("inf"))
        now_highest = tl.maximum(highest, tl.max(score, 0))
        base = tl.where(now_highest == -float("inf"), 0.0, now_highest)  # nothing is seen so far
        weight = tl.exp(score - base)
        before = tl.exp(highest - base)
        mass = mass * before + tl.sum(weight, 0)
        # A slot that is not seen may hold anything: its weight is 0, and 0 times that must be 0.
        seen_values = tl.where((weight > 0)[:, None], seen_values, 0.0)
        mixed = mixed * before + tl.sum(seen_values * weight[:, None], 0)
        highest = now_highest
    first_made = made + (turn * tl.num_programs(0) + head) * value_channels
    tl.store(first_made + wide, (mixed / mass).to(made.dtype.element_ty), mask=within)


@triton.jit
def _rotated(
    x, cosine, sine, made, channels, x_head, x_token, x_channel, c_token, c_channel, s_token, s_channel,
    m_head, m_token, m_channel, HALF: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_predecessor(EARLY)
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    inside = channel < channels
    row = x + head * x_head + token * x_token
    straight = tl.load(row + channel * x_channel, mask=inside, other=0.0)
    other = tl.where(channel < HALF, channel + HALF, channel - HALF)
    turned = tl.load(row + other * x_channel, mask=inside, other=0.0).to(tl.float32)
    turned = tl.where(channel < HALF, -turned, turned)
    by_cosine = tl.load(cosine + token * c_token + channel * c_channel, mask=inside, other=0.0).to(tl.float32)
    by_sine = tl.load(sine + token * s_token + channel * s_channel, mask=inside, other=0.0).to(tl.float32)
    # Each product is rounded, as torch's are.
    left = (straight.to(tl.float32) * by_cosine).to(made.dtype.element_ty).to(tl.float32)
    right = (turned * by_sine).to(made.dtype.element_ty).to(tl.float32)
    place = made + head * m_head + token * m_token + channel * m_channel
    tl.store(place, (left + right).to(made.dtype.element_ty), mask=inside)
