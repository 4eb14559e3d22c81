"""Whether a program reads and writes only what it is given: `kernels.c` checks none of it."""

from torch import Tensor

from specbench.engine.native.instructions import OF_ROWS, Instruction, Value, placed
from specbench.kernels import library
from specbench.kernels.structures import Op


class DoesNotFit(ValueError):
    """A program that would read or write outside of what it is given."""


def require_fits(program: list[Instruction], outside: int, sizes: int) -> None:
    """Check each operand of `program`, which is given so many tensors and sizes, since `kernels.c` checks none.

    Raises DoesNotFit if a value is read that is not there (yet, or any more), or past its columns; if a weight
    has other numbers than are read of it; and if a tensor or a size is not given.
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
        if one.op in (Op.EMBED, Op.GATHER, Op.LOAD, Op.STORE):
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
    elif one.op == Op.GATHER:
        found["weight"] = one.weight, library().packed_size(one.inner, one.width)
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
