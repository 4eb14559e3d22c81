"""The kernels of `fused` in Triton. Imported on a GPU alone, and in a test by Triton's own interpreter.

A program computes one row. Nothing here is a copy of a library's kernel.
"""

import triton
import triton.language as tl
from torch import Tensor, empty, empty_like

COLUMNS = 1024  # of a row that a program of `gated` computes
NUMBERS = 8192  # weights that a program of `norm_linear` reads
KINDS = {"relu": 0, "silu": 1, "gelu": 2, "gelu_tanh": 3}
SMALLEST = {True: 1.1920928955078125e-07, False: 7.8125e-03}  # epsilon where none is given: of float32, of bfloat16


def add_norm(x: Tensor, y: Tensor, weight: Tensor, epsilon: float | None) -> tuple[Tensor, Tensor]:
    """x + y, and its RMS norm: `fused.add_norm` in one kernel."""
    x, y, width = x.contiguous(), y.contiguous(), x.shape[-1]
    whole, normed = empty_like(x), empty_like(x)
    _add_norm[(x.numel() // width,)](
        x, y, weight, whole, normed, width, _least(x, epsilon), BLOCK=triton.next_power_of_2(width), num_warps=8
    )
    return whole, normed


def norm_linear(
    x: Tensor, y: Tensor, norm: Tensor, epsilon: float | None, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """x + y and a linear map of its RMS norm. Each program normalises the row again, which costs less than a launch."""
    x, y, width, outputs = x.contiguous(), y.contiguous(), x.shape[-1], len(weight)
    whole, made = empty_like(x), empty((*x.shape[:-1], outputs), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(width)
    rows = max(1, NUMBERS // block)
    _norm_linear[(triton.cdiv(outputs, rows),)](
        x, y, norm, weight, weight if bias is None else bias, whole, made, width, outputs, _least(x, epsilon),
        BLOCK=block, ROWS=rows, HAS_BIAS=bias is not None,
    )  # fmt: skip
    return whole, made


def write_pair(key_buffer: Tensor, value_buffer: Tensor, at: Tensor, keys: Tensor, values: Tensor) -> None:
    """Write the newest keys and values into their buffers. The states may be parts of merged rows."""
    _, heads, count, channels = keys.shape
    _write_pair[(count, heads)](
        key_buffer, value_buffer, at, keys, values, channels, *key_buffer.stride()[1:], *value_buffer.stride()[1:],
        *keys.stride()[1:], *values.stride()[1:], BLOCK=triton.next_power_of_2(channels),
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
        rows_x, rows_gate, made, width, rows_x.stride(0), rows_gate.stride(0), KIND=KINDS[activation], BLOCK=COLUMNS
    )
    return made


@triton.jit
def _add_norm(x, y, weight, whole, normed, width, epsilon, BLOCK: tl.constexpr):
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
def _gated(x, gate, made, width, x_stride, gate_stride, KIND: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    z = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    if KIND == 0:
        active = tl.maximum(z, 0.0)
    elif KIND == 1:
        active = z * tl.sigmoid(z)
    elif KIND == 2:
        active = 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))
    else:  # tanh(t) is 2 sigmoid(2 t) - 1
        active = z * tl.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))
    factor = tl.load(gate + row * gate_stride + at, mask=inside, other=0.0).to(tl.float32)
    product = active.to(made.dtype.element_ty).to(tl.float32) * factor
    tl.store(made + row * width + at, product.to(made.dtype.element_ty), mask=inside)


@triton.jit
def _norm_linear(
    x, y, norm, weight, bias, whole, made, width, outputs, epsilon,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, BLOCK)
    inside = at < width
    left = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    rounded = (left + right).to(whole.dtype.element_ty)
    if tl.program_id(0) == 0:
        tl.store(whole + at, rounded, mask=inside)
    wide = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / width + epsilon)
    factor = tl.load(norm + at, mask=inside, other=0.0).to(tl.float32)
    normed = (wide * scale * factor).to(made.dtype.element_ty).to(tl.float32)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < outputs
    places = weight + row[:, None].to(tl.int64) * width + at[None, :]
    block = tl.load(places, mask=there[:, None] & inside[None, :], other=0.0).to(tl.float32)
    total = tl.sum(block * normed[None, :], 1)
    if HAS_BIAS:
        total += tl.load(bias + row, mask=there, other=0.0).to(tl.float32)
    tl.store(made + row, total.to(made.dtype.element_ty), mask=there)


@triton.jit
def _write_pair(
    key_buffer, value_buffer, at, keys, values, channels,
    kb_head, kb_slot, kb_channel, vb_head, vb_slot, vb_channel,
    k_head, k_token, k_channel, v_head, v_token, v_channel, BLOCK: tl.constexpr,
):  # fmt: skip
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
