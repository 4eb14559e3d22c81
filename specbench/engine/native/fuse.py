"""A program with several of its instructions fused into one."""

from collections import defaultdict

from specbench.engine.native.instructions import Instruction
from specbench.kernels.structures import Op

ACTIVATIONS = (Op.RELU, Op.SILU, Op.GELU, Op.GELU_TANH, Op.TANH)


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
