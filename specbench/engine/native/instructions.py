"""The instructions of `kernels.c` and their operands; what fuses several into one, and where values lie in the arena.

Each value is a slot that one instruction writes; a view of some columns of it is the slot and its first column.
"""

import ctypes
from collections import defaultdict
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from torch import Tensor

from specbench.kernels import library


class Op(IntEnum):
    """As in `kernels.c`."""

    EMBED, LOAD, STORE, NORM, LINEAR, WRITE, ATTEND, ADD, MUL, SCALE, SHIFT, POWER = range(12)
    RELU, SILU, GELU, GELU_TANH, TANH, PICK, ROTATE, DIVIDE, SPREAD = range(12, 21)


OF_ROWS = -1  # instead of the number of a size: keys and values are those of the new tokens, and in no cache
ACTIVATIONS = (Op.RELU, Op.SILU, Op.GELU, Op.GELU_TANH, Op.TANH)


@dataclass(frozen=True)
class Value:
    """`width` columns of a slot, from `column` on, for each new token."""

    slot: int
    column: int
    width: int


@dataclass
class Instruction:
    """`outside` and the three sizes number tensors and sizes that a call is given."""

    op: Op
    width: int
    out: int | None = None  # the slot that it writes
    x: Value | None = None
    y: Value | None = None
    z: Value | None = None
    inner: int = 0
    heads: int = 0
    key_heads: int = 0
    outside: list[int] = field(default_factory=list)
    slots: int = 0
    bias_texts: int = 0
    bias_heads: int = 0
    bias_rows: int = 0
    weight: Tensor | None = None
    bias: Tensor | None = None
    norm_weight: Tensor | None = None
    norm_bias: Tensor | None = None
    scale: float = 1.0
    epsilon: float = 0.0
    centred: bool = False
    activation: int = -1
    normed: bool = False
    period: int = 0  # of y's columns, which are repeated to the width; 0: none are
    level_bits: int = 0  # of a linear map's weights, where they are levels
    short_cache: bool = False  # whether keys and values outside are bf16

    @property
    def in_blocks(self) -> bool:
        """Whether it is attention over a cache that is read block by block, as `is_blocked` of kernels.c."""
        return self.slots != OF_ROWS and (self.short_cache or self.heads > self.key_heads)

    @property
    def read(self) -> list[int]:
        return [value.slot for value in (self.x, self.y, self.z) if value is not None]


def fused(program: list[Instruction]) -> list[Instruction]:
    """`program` with norms fused into the linear maps that read them, activations and sums into those before."""
    readers: dict[int, list[Instruction]] = defaultdict(list)
    for one in program:
        for slot in one.read:
            readers[slot].append(one)
    writer = {one.out: (place, one) for place, one in enumerate(program) if one.out is not None}
    gone: set[int] = set()
    for one in program:
        if one.op == Op.ADD and (made := _rotation(one, writer, readers)) is not None:
            gone |= made
    for one in program:
        if (
            one.op == Op.NORM
            and one.heads == 1
            and one.out is not None
            and all(user.op == Op.LINEAR and user.inner == one.width for user in readers[one.out])
        ):
            for user in readers[one.out]:
                assert user.x is not None
                user.x, user.normed = one.x, True
                user.norm_weight, user.norm_bias = one.norm_weight, one.norm_bias
                user.epsilon, user.centred = one.epsilon, one.centred
            gone.add(id(one))
        elif one.op in ACTIVATIONS or one.op == Op.ADD:
            for mine, other in ((one.x, one.y), (one.y, one.x)):
                place, before = writer.get(mine.slot, (0, None)) if mine is not None else (0, None)
                if before is None or before.op != Op.LINEAR or before.y is not None or mine is None:
                    continue
                if len(readers[mine.slot]) > 1 or mine.width != before.width or other == mine:
                    continue
                if one.op == Op.ADD:
                    if other is None or writer[other.slot][0] > place:
                        continue
                    before.y = other
                elif before.activation >= 0:
                    continue
                else:
                    before.activation = int(one.op)
                before.out = one.out
                assert one.out is not None
                writer[one.out] = place, before
                gone.add(id(one))
                break
    return [one for one in program if id(one) not in gone]


def _rotation(
    one: Instruction, writer: dict[int, tuple[int, Instruction]], readers: dict[int, list[Instruction]]
) -> set[int] | None:
    """Make x cos + pick(x) sin, which `one` ends, one instruction; returns the ids of those that it replaces."""
    for mine, other in ((one.x, one.y), (one.y, one.x)):
        if mine is None or other is None or one.period:
            return None
        straight, turned = (writer[value.slot][1] for value in (mine, other))
        if straight.op != Op.MUL or turned.op != Op.MUL or straight.period != turned.period or not turned.period:
            continue
        assert turned.x is not None
        picking = writer[turned.x.slot][1]
        if picking.op != Op.PICK or picking.x != straight.x or picking.inner != one.width:
            continue
        if any(len(readers[part.out or 0]) > 1 for part in (straight, turned, picking)):
            continue
        one.op, one.x, one.y, one.z = Op.ROTATE, straight.x, straight.y, turned.y
        one.weight, one.inner, one.period = picking.weight, picking.inner, turned.period
        return {id(straight), id(turned), id(picking)}
    return None


def placed(program: list[Instruction]) -> tuple[dict[int, int], dict[int, int], int]:
    """The offset of each slot in the arena, its width, and the arena's floats, each for one new token.

    A slot whose last reader has run is used again.
    """
    last = {slot: place for place, one in enumerate(program) for slot in one.read}
    at: dict[int, int] = {}
    widths: dict[int, int] = {}
    free: dict[int, list[int]] = defaultdict(list)
    end = 0
    for place, one in enumerate(program):
        if one.out is not None:
            widths[one.out] = one.width
            if free[one.width]:
                at[one.out] = free[one.width].pop()
            else:
                at[one.out], end = end, end + one.width
        for slot in set(one.read):
            if last[slot] == place:
                free[widths[slot]].append(at[slot])
    return at, widths, end


class DoesNotFit(ValueError):
    """A program that would read or write outside of what it is given."""


def require_fits(program: list[Instruction], outside: int, sizes: int) -> None:
    """Check each operand of `program`, which is given so many tensors and sizes, since `kernels.c` checks none.

    Raises DoesNotFit where a value is read that is not there (yet, or any more), or past its columns; where a weight
    has other numbers than are read of it; and where a tensor or a size is not given.
    """
    written: set[int | None] = set()
    for one in program:
        if absent := set(one.read) - written:
            raise DoesNotFit(f"a native program, {one.op.name}: slot {min(absent)} does not fit: nothing wrote it yet")
        written.add(one.out)
    at, widths, end = placed(program)
    holds: dict[int, int] = {}  # the slot that is in each place of the arena
    for number, one in enumerate(program):

        def require(fits: bool, what: str, one: Instruction = one, number: int = number) -> None:
            if not fits:
                raise DoesNotFit(f"instruction {number} of a native program, {one.op.name}: {what} does not fit")

        for value in (one.x, one.y, one.z):
            if value is not None:
                require(holds[at[value.slot]] == value.slot, f"slot {value.slot}")
                require(0 <= value.column <= widths[value.slot] - value.width, f"column {value.column}")
        if one.out is not None:
            holds[at[one.out]] = one.out
            require(0 <= at[one.out] <= end - one.width, f"slot {one.out}")
        given = [*one.outside, *([-1] * (3 - len(one.outside)))]
        require(all(-1 <= tensor < outside for tensor in given), "a tensor")
        if one.op in (Op.EMBED, Op.LOAD, Op.STORE):
            require(given[0] >= 0, "a tensor")
        if one.op in (Op.WRITE, Op.ATTEND):
            named = [] if one.slots == OF_ROWS else [one.slots]
            named += [one.bias_texts, one.bias_heads, one.bias_rows] if one.op == Op.ATTEND and given[2] >= 0 else []
            require(all(0 <= size < sizes for size in named), "a size")
        for name, (tensor, numbers) in _weights(one).items():
            require(tensor is None or tensor.numel() == numbers, name)
        for value, width in _read_widths(one):
            require(value is None or value.width == width, f"a value of width {value.width if value else 0}")


def _weights(one: Instruction) -> dict[str, tuple[Tensor | None, int]]:
    """The weights of an instruction, and how many numbers of each are read."""
    found = {"norm_weight": (one.norm_weight, one.inner), "norm_bias": (one.norm_bias, one.inner)}
    if one.op == Op.EMBED:
        found["weight"] = one.weight, one.inner * one.width
    elif one.op == Op.LINEAR:
        found["bias"] = one.bias, one.width
        if not one.level_bits:
            found["weight"] = one.weight, library().packed_size(one.width, one.inner)
    elif one.op in (Op.PICK, Op.ROTATE):
        found["weight"] = one.weight, one.width
    elif one.op == Op.SPREAD:
        found["weight"] = one.weight, one.inner
    elif one.op == Op.ATTEND:
        found["bias"] = one.bias, one.heads
    return found


def _read_widths(one: Instruction) -> list[tuple[Value | None, int]]:
    """The values that an instruction reads, and how wide each must be."""
    if one.op == Op.LINEAR:
        return [(one.x, one.inner), (one.y, one.width)]
    if one.op in (Op.PICK, Op.ROTATE, Op.SPREAD):
        return [(one.x, one.inner)] + [(one.y, one.period), (one.z, one.period)] * (one.op == Op.ROTATE)
    if one.op == Op.ATTEND:
        keys = one.key_heads * one.inner
        return [(one.x, one.heads * one.inner), (one.y, keys), (one.z, keys)]
    if one.op in (Op.NORM, Op.WRITE):
        return [(one.x, one.heads * one.inner), (one.x, one.width)]
    return [(one.x, one.width), (one.y, one.period or one.width)]


class _Ref(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("at", "column", "stride")]


class _Raw(ctypes.Structure):
    """`Instruction` of kernels.c."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in
          ("op", "width", "inner", "heads", "key_heads", "short_floats", "barrier", "centred")),
        ("outside", ctypes.c_int64 * 4),
        *((name, ctypes.c_int64) for name in ("slots", "bias_texts", "bias_heads", "bias_rows")),
        *((name, _Ref) for name in ("out", "x", "y", "z")),
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "norm_weight", "norm_bias")),
        *((name, ctypes.c_double) for name in ("scale", "epsilon")),
        *((name, ctypes.c_int64) for name in
          ("activation", "residual", "normed", "period", "level_bits", "short_cache")),
    ]  # fmt: skip


def encoded(program: list[Instruction], short_floats: bool) -> tuple[Any, int]:
    """`program` as the array that `run` takes, and the arena's floats for one new token."""
    at, widths, size = placed(program)

    def ref(value: Value | None) -> _Ref:
        return _Ref(0, 0, 0) if value is None else _Ref(at[value.slot], value.column, widths[value.slot])

    raw = (_Raw * len(program))()
    for one, made, after in zip(program, raw, [*program[1:], None], strict=True):
        for name in ("op", "width", "inner", "heads", "key_heads", "centred", "slots", "bias_texts", "bias_heads",
                     "bias_rows", "scale", "epsilon", "activation", "normed", "level_bits",
                     "short_cache"):  # fmt: skip
            setattr(made, name, getattr(one, name))
        for name in ("weight", "bias", "norm_weight", "norm_bias"):
            tensor = getattr(one, name)
            setattr(made, name, None if tensor is None else tensor.data_ptr())
        made.short_floats, made.residual = short_floats, one.y is not None
        # What follows reads what all threads wrote; writes into caches, and loads, touch nothing of each other's.
        made.barrier = after is not None and not (after.op == one.op and one.op in (Op.WRITE, Op.LOAD))
        made.outside[:] = [*one.outside, *[-1] * (4 - len(one.outside))]
        made.out = ref(None if one.out is None else Value(one.out, 0, one.width))
        made.x, made.y, made.z = ref(one.x), ref(one.y), ref(one.z)
        made.period = one.period or one.width
    return raw, size
