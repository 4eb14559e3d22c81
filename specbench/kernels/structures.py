"""The operations and structures of `kernels.c`, as `ctypes` lays them out.

`layout` of both is compared when the kernels are loaded: a field that only one of them has would corrupt memory.
"""

import ctypes
from enum import IntEnum


class Op(IntEnum):
    """Numbers of operations; what each reads and writes stands at `Instruction` in instructions.h."""

    EMBED, LOAD, STORE, NORM, LINEAR, WRITE, ATTEND, ADD, MUL, SCALE, SHIFT, POWER = range(12)
    RELU, SILU, GELU, GELU_TANH, TANH, PICK, ROTATE, DIVIDE, SPREAD, GATHER = range(12, 22)


class RawSampling(ctypes.Structure):
    """`Sampling` of kernels.c."""

    _fields_ = [("temperature", ctypes.c_double), ("top_p", ctypes.c_double), ("top_k", ctypes.c_int64)]

    @staticmethod
    def of(temperature: float, top_k: int | None, top_p: float | None) -> "RawSampling":
        """The structure for these settings; None for what is off."""
        return RawSampling(temperature, 1.0 if top_p is None else top_p, top_k or 0)


class RawRef(ctypes.Structure):
    """`Ref` of kernels.c."""

    _fields_ = [(name, ctypes.c_int64) for name in ("at", "column", "stride")]


class RawInstruction(ctypes.Structure):
    """`Instruction` of kernels.c."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in
          ("op", "width", "inner", "heads", "key_heads", "short_floats", "barrier", "centred")),
        ("outside", ctypes.c_int64 * 4),
        *((name, ctypes.c_int64) for name in ("slots", "bias_texts", "bias_heads", "bias_rows")),
        *((name, RawRef) for name in ("out", "x", "y", "z")),
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "norm_weight", "norm_bias")),
        *((name, ctypes.c_double) for name in ("scale", "epsilon")),
        *((name, ctypes.c_int64) for name in
          ("activation", "residual", "normed", "period", "level_bits", "short_cache")),
    ]  # fmt: skip


class Part(ctypes.Structure):
    """`Part` of kernels.c."""

    _fields_ = [
        ("outside", ctypes.c_void_p), ("sizes", ctypes.c_void_p), ("texts", ctypes.c_int64), ("rows", ctypes.c_int64),
        ("moved", ctypes.c_void_p), ("placed", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("moved_count", "ids", "results")),
    ]  # fmt: skip


class Step(ctypes.Structure):
    """`Step` of kernels.c."""

    _fields_ = [
        ("program", ctypes.c_void_p), ("count", ctypes.c_int64), ("parts", ctypes.c_void_p),
        ("part_count", ctypes.c_int64), ("rows", ctypes.c_int64),
    ]  # fmt: skip


class RawChoice(ctypes.Structure):
    """`Choice` of kernels.c."""

    _fields_ = [
        ("logits", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("short_floats", "stride", "vocabulary")),
        ("how", RawSampling), *((name, ctypes.c_void_p) for name in ("uniforms", "rows", "tokens", "ends")),
        ("end_count", ctypes.c_int64),
    ]  # fmt: skip


class RawReader(ctypes.Structure):
    """`Reader` of kernels.c."""

    _fields_ = [
        ("steps", ctypes.c_void_p), ("placed", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("most", "length", "capacity")),
        ("arena", ctypes.c_void_p), ("logits", ctypes.c_void_p), ("choice", RawChoice), ("ran_s", ctypes.c_double),
    ]  # fmt: skip


class RawPass(ctypes.Structure):
    """`Pass` of kernels.c."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("drafted", "accepted", "emitted")),
        *((name, ctypes.c_double) for name in ("drafted_s", "verified_s", "over_s", "draft_ran_s", "target_ran_s")),
    ]  # fmt: skip


class Kind(IntEnum):
    """Kinds of acceptance rules in verdicts.h."""

    EXACT, LENIENT, BY_BLOCK, TYPICAL, NEAR_BEST, MATCH, BY_CHANCE = range(7)


class RawRule(ctypes.Structure):
    """`Rule` of kernels.c."""

    _fields_ = [
        ("kind", ctypes.c_int64), ("beta", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("lenience", "epsilon", "delta", "alpha")),
    ]  # fmt: skip


class RawChain(ctypes.Structure):
    """`Chain` of kernels.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("p", "q", "drafted")), ("count", ctypes.c_int64), ("n", ctypes.c_int64),
        ("trials", ctypes.c_void_p), ("nexts", ctypes.c_void_p), ("least", ctypes.c_double), ("room", ctypes.c_void_p),
    ]  # fmt: skip


class RawPasses(ctypes.Structure):
    """`Passes` of kernels.c."""

    _fields_ = [
        ("tokens", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("length", "end", "gamma", "most", "given")),
        ("rule", RawRule), ("trials", ctypes.c_void_p), ("nexts", ctypes.c_void_p), ("least", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("room", "best", "done", "drafted")),
    ]  # fmt: skip


class RawExperts(ctypes.Structure):
    """`Experts` of kernels.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("up", "down", "up_bias", "down_bias")),
        *((name, ctypes.c_int64) for name in ("experts", "width", "inner", "short_floats", "activation", "clamped")),
        *((name, ctypes.c_double) for name in ("alpha", "limit")),
    ]  # fmt: skip


STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "Ref": RawRef, "Instruction": RawInstruction, "Part": Part, "Step": Step, "Sampling": RawSampling,
    "Choice": RawChoice, "Reader": RawReader, "Pass": RawPass, "Rule": RawRule, "Chain": RawChain,
    "Passes": RawPasses, "Experts": RawExperts,
}  # fmt: skip


def layout() -> dict[str, int]:
    """The number of each operation, the size of each structure, and where each of its fields begins, in bytes."""
    found = {one.name: int(one) for kinds in (Op, Kind) for one in kinds}
    for name, structure in STRUCTURES.items():
        found[name] = ctypes.sizeof(structure)
        found |= {f"{name}.{field[0]}": getattr(structure, field[0]).offset for field in structure._fields_}
    return found


def layout_of(kernels: ctypes.PyDLL) -> dict[str, int]:
    """The layout (see `layout`) that compiled kernels report."""
    kernels.layout.restype, kernels.layout.argtypes = ctypes.c_char_p, [ctypes.c_int64, ctypes.c_void_p]
    found, number = dict[str, int](), ctypes.c_int64()
    while (name := kernels.layout(len(found), ctypes.byref(number))) is not None:
        found[name.decode()] = number.value
    return found
