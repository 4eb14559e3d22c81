"""The operations and structures of `kernels.c`, as `ctypes` lays them out."""

import ctypes
from enum import IntEnum


class Op(IntEnum):
    """As in `kernels.c`."""

    EMBED, LOAD, STORE, NORM, LINEAR, WRITE, ATTEND, ADD, MUL, SCALE, SHIFT, POWER = range(12)
    RELU, SILU, GELU, GELU_TANH, TANH, PICK, ROTATE, DIVIDE, SPREAD = range(12, 21)


class RawSampling(ctypes.Structure):
    """`Sampling` of kernels.c."""

    _fields_ = [("temperature", ctypes.c_double), ("top_p", ctypes.c_double), ("top_k", ctypes.c_int64)]

    @staticmethod
    def of(temperature: float, top_k: int | None, top_p: float | None) -> "RawSampling":
        """With None for what is off."""
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


class RawPasses(ctypes.Structure):
    """`Passes` of kernels.c."""

    _fields_ = [
        ("tokens", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("length", "end", "gamma", "most", "given")),
        ("trials", ctypes.c_void_p), ("nexts", ctypes.c_void_p), ("least", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("room", "best", "done", "drafted")),
    ]  # fmt: skip


class RawExperts(ctypes.Structure):
    """`Experts` of kernels.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("up", "down", "up_bias", "down_bias")),
        *((name, ctypes.c_int64) for name in ("experts", "width", "inner", "short_floats", "activation", "clamped")),
        *((name, ctypes.c_double) for name in ("alpha", "limit")),
    ]  # fmt: skip
