"""The instructions of `kernels.c` and their operands, and where values lie in the arena.

Each value is a slot that one instruction writes; a view of some columns of it is the slot and its first column.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from specbench.kernels.structures import Op, RawInstruction, RawRef

OF_ROWS = -1  # instead of the number of a size: keys and values belong to the new tokens, and are in no cache


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
    level_bits: int = 0  # of a linear map's weights, if they are levels
    short_cache: bool = False  # whether keys and values outside are bf16

    @property
    def in_blocks(self) -> bool:
        """Whether it is attention over a cache that is read block by block, as `is_blocked` of kernels.c."""
        return self.slots != OF_ROWS and (self.short_cache or self.heads > self.key_heads)

    @property
    def read(self) -> list[int]:
        return [value.slot for value in (self.x, self.y, self.z) if value is not None]


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


def encoded(program: list[Instruction], short_floats: bool) -> tuple[Any, int]:
    """`program` as the array that `run` takes, and the arena's floats for one new token."""
    at, widths, size = placed(program)

    def ref(value: Value | None) -> RawRef:
        return RawRef(0, 0, 0) if value is None else RawRef(at[value.slot], value.column, widths[value.slot])

    raw = (RawInstruction * len(program))()
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
