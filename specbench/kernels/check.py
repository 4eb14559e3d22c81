"""The compiled kernels against plain loops in Python, before their first use on a machine.

A compiler may be wrong for one processor: GCC 12 made draws for SVE that were all the last token. What is compared are
linear maps, attention, standardised rows, and the acceptance, residual and draws of Algorithm 1, in sizes that fill no
vector and that fill several. Inputs of maps are small multiples of 1/8, so that their sums are exact in any order.
"""

import ctypes
import math
import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import mul
from random import Random

from specbench.kernels.structures import Kind, Op, Part, RawChain, RawInstruction, RawRef, RawRule, RawSampling, Step

ROWS, INNER, WIDTH = 9, 37, 75  # of the largest map
HEADS, CHANNELS, SLOTS = 2, 20, 160  # of attention: more of them visible than a block has
GROUP = 32  # inputs that share a scale, as in levels.h
HALF_SCALES = 64  # of `level_bits`, as in level_scales.h
ROOM = 1 << 16  # floats for values, and as many for the kernels' own use
NEAR, NEARER = 1e-4, 1e-5  # of sums that are rounded
DRAWS = 50


class Differs(Exception):
    """The result of a kernel, and the right result."""


def fault_of(kernels: ctypes.PyDLL) -> str | None:
    """The kernel that returns what plain loops do not, in words; None if all are right."""
    for name, check in CHECKS.items():
        try:
            check(kernels, Random(7))
        except Differs as difference:
            return f"{name} differ from plain loops on this machine ({difference})"
    return None


def _require(found: Iterable[float], wanted: Iterable[float], near: float = 0) -> None:
    for one, right in zip(found, wanted, strict=True):
        if not abs(one - right) <= near * (1 + abs(right)):
            raise Differs(f"{one:.6g}, not {right:.6g}")


def _floats(values: Sequence[float]) -> "ctypes.Array[ctypes.c_float]":
    return (ctypes.c_float * len(values)).from_buffer(array("f", values))  # several times as fast as from arguments


EIGHTHS = [eighth / 8 for eighth in range(-16, 17)]


def _eighths(random: Random, count: int) -> list[float]:
    return random.choices(EIGHTHS, k=count)


def _as_bf16(values: Sequence[float]) -> "ctypes.Array[ctypes.c_uint16]":
    """The nearest numbers of bf16, of two the even one."""
    words = struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values))
    return (ctypes.c_uint16 * len(values))(*[(word + 0x7FFF + (word >> 16 & 1)) >> 16 for word in words])


def _as_half(values: Sequence[float]) -> "ctypes.Array[ctypes.c_uint16]":
    """The nearest numbers of fp16."""
    return (ctypes.c_uint16 * len(values))(*struct.unpack(f"<{len(values)}H", struct.pack(f"<{len(values)}e", *values)))


def _from_bf16(numbers: Iterable[float]) -> list[float]:
    words = [int(one) << 16 for one in numbers]
    return list(struct.unpack(f"<{len(words)}f", struct.pack(f"<{len(words)}I", *words)))


def _run(
    kernels: ctypes.PyDLL, instruction: RawInstruction, inner: int, width: int, rows: int, outside: Sequence[object],
    sizes: Sequence[int], short_floats: bool,
) -> list[float]:  # fmt: skip
    """Rows [rows, width] of `instruction` on the rows [rows, inner] that `outside` begins with."""
    number = ctypes.c_uint16 if short_floats else ctypes.c_float
    out = (number * (rows * width))()
    program = (RawInstruction * 3)(RawInstruction(Op.LOAD), instruction, RawInstruction(Op.STORE))
    program[0].width, program[0].out = inner, RawRef(0, 0, inner)
    program[1].x, program[1].out, program[1].width = RawRef(0, 0, inner), RawRef(inner, 0, width), width
    program[2].width, program[2].x, program[2].outside[0] = width, RawRef(inner, 0, width), len(outside)
    for one in program:
        one.short_floats, one.barrier, one.period = short_floats, 1, one.width
    held = (ctypes.c_void_p * (len(outside) + 1))(*[ctypes.addressof(one) for one in (*outside, out)])  # type: ignore[arg-type]
    numbers, arena = (ctypes.c_int64 * len(sizes))(*sizes), (ctypes.c_float * (2 * ROOM))()
    part = Part(ctypes.addressof(held), ctypes.addressof(numbers), 1, rows, None, None, 0, 0, 0)
    step = Step(ctypes.addressof(program), len(program), ctypes.addressof(part), 1, rows)
    start = ctypes.addressof(arena)
    kernels.run(ctypes.byref(step), start, start + 4 * ROOM, ROOM, 1)
    return _from_bf16(out) if short_floats else list(out)


def _products(x: Sequence[float], weight: Sequence[float]) -> list[float]:
    """Rows [R, INNER] times a weight [N, INNER]."""
    lines = [weight[at : at + INNER] for at in range(0, len(weight), INNER)]
    return [sum(map(mul, x[r : r + INNER], line)) for r in range(0, len(x), INNER) for line in lines]


def _maps(kernels: ctypes.PyDLL, random: Random) -> None:
    """Linear maps in fp32 and bf16, of several rows and of one."""
    x, weight = _eighths(random, ROWS * INNER), _eighths(random, WIDTH * INNER)
    wanted = _products(x, weight)
    for is_short in (False, True):
        plain = _as_bf16(weight) if is_short else _floats(weight)
        packed = (ctypes.c_uint8 * (kernels.packed_size(WIDTH, INNER) * (2 if is_short else 4)))()
        kernels.pack(ctypes.addressof(plain), ctypes.addressof(packed), WIDTH, INNER, is_short)
        _require_map(kernels, packed, 0, x, wanted, is_short)


def _levels(kernels: ctypes.PyDLL, random: Random) -> None:
    """Linear maps of weights in 8 and 4 bits: of inputs that bf16 has, exactly, and of inputs in fp32."""
    groups = -(-INNER // GROUP)
    short_x = [one / 128 for one in random.choices(range(-255, 256), k=ROWS * INNER)]
    wide_x = [random.uniform(-2, 2) for _ in range(ROWS * INNER)]
    for bits in (8, 4):
        lowest = -(2 ** (bits - 1))
        levels = random.choices(range(lowest, -lowest), k=WIDTH * INNER)
        scales = [2.0 ** random.randint(-6, -4) for _ in range(WIDTH * groups)]
        weight = [level * scales[at // INNER * groups + at % INNER // GROUP] for at, level in enumerate(levels)]
        exact, near = _products(short_x, weight), _products(wide_x, weight)
        raw = (ctypes.c_int8 * len(levels))(*levels)
        packed = (ctypes.c_uint8 * kernels.levels_size(WIDTH, INNER, bits))()
        for of_scales in (0, HALF_SCALES):
            short = (_as_half if of_scales else _as_bf16)(scales)
            kernels.pack_levels(
                ctypes.addressof(raw), ctypes.addressof(short), ctypes.addressof(packed), WIDTH, INNER, bits
            )
            _require_map(kernels, packed, bits | of_scales, short_x, exact, False)
            _require_map(kernels, packed, bits | of_scales, short_x, exact, True)
            _require_map(kernels, packed, bits | of_scales, wide_x, near, False, NEARER)


def _require_map(
    kernels: ctypes.PyDLL, packed: object, bits: int, x: list[float], wanted: list[float], is_short: bool,
    near: float = 0,
) -> None:  # fmt: skip
    """Compare a map of all rows, of some, and of a single row."""
    instruction = RawInstruction(Op.LINEAR)
    instruction.inner, instruction.activation, instruction.level_bits = INNER, -1, bits
    instruction.weight = ctypes.addressof(packed)  # type: ignore[arg-type]
    for rows in (ROWS, 3, 1):
        some = x[: rows * INNER]
        right = wanted[: rows * WIDTH]
        given = _as_bf16(some) if is_short else _floats(some)
        found = _run(kernels, instruction, INNER, WIDTH, rows, [given], [0], is_short)
        _require(found, _from_bf16(_as_bf16(right)) if is_short else right, near)


def _attention(kernels: ctypes.PyDLL, random: Random) -> None:
    """Attention row by row, and block by block in fp32 and bf16."""
    for key_heads, is_short in ((HEADS, False), (1, False), (1, True)):
        rows, width, slots = 2, HEADS * CHANNELS, SLOTS
        q, keys, values = (_eighths(random, n * CHANNELS) for n in (rows * HEADS, key_heads * slots, key_heads * slots))
        # The last slots have the highest scores of most rows: then the sums so far are scaled.
        keys = [one / 2 if at // CHANNELS % slots < 140 else one for at, one in enumerate(keys)]
        seen = [[random.random() < 0.9 for _ in range(slots)] for _ in range(rows)]
        bias = _floats([0.0 if one else -3.3e38 for row in seen for one in row])
        instruction = RawInstruction(Op.ATTEND)
        instruction.inner, instruction.heads, instruction.key_heads, instruction.scale = (
            CHANNELS,
            HEADS,
            key_heads,
            0.125,
        )
        instruction.outside[:] = [1, 2, 3, -1]
        instruction.bias_texts, instruction.bias_heads, instruction.bias_rows = 1, 2, 3
        instruction.short_cache = is_short
        held = [_as_bf16(one) if is_short else _floats(one) for one in (q, keys, values)]
        found = _run(kernels, instruction, width, width, rows, [*held, bias], [slots, 1, 1, rows], is_short)
        wanted = []
        for row in range(rows):
            for head in range(HEADS):
                query = q[(row * HEADS + head) * CHANNELS :][:CHANNELS]
                first = head * key_heads // HEADS * slots
                visible = [first + slot for slot in range(slots) if seen[row][slot]]
                scores = [sum(map(mul, query, keys[at * CHANNELS : (at + 1) * CHANNELS])) / 8 for at in visible]
                highest = max(scores)
                weights = [math.exp(score - highest) for score in scores]
                for channel in range(CHANNELS):
                    mixed = sum(map(mul, weights, [values[at * CHANNELS + channel] for at in visible]))
                    wanted.append(mixed / sum(weights))
        _require(found, wanted, 2e-2 if is_short else NEAR)


def _standardised(kernels: ctypes.PyDLL, random: Random) -> None:
    """Softmax and argmax."""
    for size in (7, 200):
        logits = [4 * one for one in _eighths(random, size)]
        wanted = [math.exp((logit - max(logits)) / 0.5) for logit in logits]
        wanted = [one / sum(wanted) for one in wanted]
        read, out, how = _floats(logits), _floats([0.0] * size), RawSampling.of(0.5, None, None)
        kernels.standardise(ctypes.addressof(read), 0, size, ctypes.addressof(out), 1, size, ctypes.byref(how), 1)
        _require(out, wanted, NEAR)
        best = (ctypes.c_int64 * 1)()
        kernels.likeliest(ctypes.addressof(read), 0, size, 1, size, ctypes.addressof(best))
        _require(best, [logits.index(max(logits))])


def _drawn(weights: Sequence[float]) -> list[tuple[float, int]]:
    """Uniform numbers and the token that each draws: the first with which the weights exceed that share."""
    sums = list(accumulate(weights))
    numbers = [(index + 0.5) / DRAWS for index in range(DRAWS)]
    return [(number, bisect_right(sums, number * sums[-1])) for number in numbers]


def _draws(kernels: ctypes.PyDLL, random: Random) -> None:
    """Tokens by uniform numbers."""
    for size in (7, 200):
        weights = [random.choice((0, 1, 2, 5)) / 8 for _ in range(size - 1)] + [0.125]
        row, token = _floats(weights), (ctypes.c_int64 * 1)()
        for uniform, right in _drawn(weights):
            number = ctypes.c_double(uniform)
            kernels.draw(ctypes.addressof(row), 1, size, ctypes.addressof(number), ctypes.addressof(token))
            _require(token, [right])


def _verified(kernels: ctypes.PyDLL, size: int, p: list[float], q: list[float] | None, token: int, tried: float,
              uniform: float) -> tuple[int, int]:  # fmt: skip
    """How many of one drafted token are accepted, and the token that follows."""
    rows, room, follows = _floats(p), _floats([0.0] * size), ctypes.c_int64()
    drafts, drafted, trial = _floats(q or [0.0]), (ctypes.c_int64 * 1)(token), _floats([tried])
    last, rule = ctypes.c_double(uniform), RawRule(Kind.EXACT)
    chain = RawChain(
        ctypes.addressof(rows), ctypes.addressof(drafts) if q else None, ctypes.addressof(drafted), 1, size,
        ctypes.addressof(trial), ctypes.addressof(last), 1e-9, ctypes.addressof(room),
    )  # fmt: skip
    accepted = kernels.verify(ctypes.byref(rule), ctypes.byref(chain), ctypes.byref(follows))
    return accepted, follows.value


def _accepted(kernels: ctypes.PyDLL, random: Random) -> None:
    """Whether a drafted token is accepted."""
    p, q = [0.5, 0.25, 0.125, 0.125, *[0.25] * 4], [0.125, 0.5, 0.125, 0.25]
    for token in range(4):
        for tried in ((index + 0.5) / 8 for index in range(8)):
            for draft, share in ((q, p[token] / q[token]), (None, p[token])):
                _require([_verified(kernels, 4, p, draft, token, tried, 0.5)[0]], [tried < share])


def _residuals(kernels: ctypes.PyDLL, random: Random) -> None:
    """The token that follows a rejected one."""
    for size in (7, 200):
        p, q = ([random.choice((1, 2, 5)) / 8 for _ in range(size)] for _ in range(2))
        q[0], p[0] = 2.0, 0.125  # the drafted token, which is rejected
        for draft in (q, None):
            left = [max(one - other, 0) for one, other in zip(p, draft, strict=True)] if draft else [0.0, *p[1:]]
            for uniform, right in _drawn(left):
                _require(_verified(kernels, size, [*p, *p], draft, 0, 0.9, uniform), [0, right])


CHECKS: dict[str, Callable[[ctypes.PyDLL, Random], None]] = {
    "linear maps": _maps,
    "linear maps of rounded weights": _levels,
    "attention's rows": _attention,
    "standardised rows": _standardised,
    "draws": _draws,
    "verdicts on a proposal": _accepted,
    "draws from the residual": _residuals,
}
