"""`kernels.c`, compiled for this machine by the C compiler that is there, once, and loaded.

`engine.native` makes programs of its operations; `standardised`, `drawn` and `verdict` are Algorithm 1 on rows.

The library lies in the user's cache folder, under a digest of the source, the compiler and the processor, so that
machines that share a home folder do not share it unless they are alike. It uses the threads of torch's own OpenMP.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.deferred import torch
from specbench.errors import first_line
from specbench.files import digest, is_own, private_folder, user_cache

if TYPE_CHECKING:
    from torch import Tensor


SOURCE = Path(__file__).parent / "kernels.c"
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
QUIET = ("-Wno-psabi", "-w")
COMPILERS = ("cc", "gcc", "clang")
PATIENCE_S = 120
DIGEST = 64  # the last characters of a library: a digest of all before them


class RawSampling(ctypes.Structure):
    """`Sampling` of kernels.c."""

    _fields_ = [("temperature", ctypes.c_double), ("top_p", ctypes.c_double), ("top_k", ctypes.c_int64)]

    @staticmethod
    def of(temperature: float, top_k: int | None, top_p: float | None) -> RawSampling:
        """With None for what is off."""
        return RawSampling(temperature, 1.0 if top_p is None else top_p, top_k or 0)


class NotCompiled(RuntimeError):
    """Why there are no native kernels on this machine."""


@cache
def found() -> ctypes.PyDLL | NotCompiled:
    """The compiled kernels, or why there are none: no compiler, or it fails."""
    try:
        return _loaded()
    except NotCompiled as reason:
        return reason


def library() -> ctypes.PyDLL:
    """The compiled kernels. Raises NotCompiled where there are none."""
    if isinstance(kernels := found(), NotCompiled):
        raise NotCompiled(str(kernels))
    return kernels


def is_available() -> bool:
    """Whether this machine has the kernels, or can compile them."""
    return not isinstance(found(), NotCompiled)


def _loaded() -> ctypes.PyDLL:
    if not sys.platform.startswith("linux"):
        raise NotCompiled(f"native kernels are built on Linux only, and this is {sys.platform}")
    compiler = os.environ.get("CC") or next((name for name in COMPILERS if shutil.which(name)), None)
    if compiler is None:
        raise NotCompiled("there is no C compiler (cc, gcc or clang) on PATH")
    command = [*compiler.split(), *FLAGS, *QUIET]
    file = _folder() / f"kernels-{_digest(command)}.so"
    if not is_own(file) or not _is_whole(file):  # missing, cut off, or put there by another user
        _compile(command, file)
    try:
        _share_openmp()
        # PyDLL does not release Python's lock: a step's arena serves one call at a time.
        loaded = ctypes.PyDLL(str(file))
    except OSError as error:
        raise NotCompiled(f"{file}: cannot be loaded: {first_line(error)}") from error
    loaded.packed_size.restype = ctypes.c_int64
    loaded.packed_size.argtypes = [ctypes.c_int64] * 2
    loaded.pack.restype = loaded.run.restype = loaded.standardise.restype = loaded.draw.restype = None
    loaded.pack.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 3
    pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    loaded.run.argtypes = [pointer, pointer, pointer, number, number]
    loaded.rollout.restype = number
    loaded.rollout.argtypes = [pointer, number, pointer, pointer, pointer, number, number]
    loaded.standardise.argtypes = [pointer, number, number, pointer, number, number, pointer]
    loaded.draw.argtypes = [pointer, number, number, pointer, pointer]
    loaded.verify.restype = number
    loaded.verify.argtypes = [pointer, pointer, pointer, number, pointer, real, real, number, pointer, pointer]
    return loaded


def _compile(command: list[str], file: Path) -> None:
    """Write the library to `file`, whole or not at all: several processes may do so at once."""
    handle, made = tempfile.mkstemp(suffix=".so", dir=file.parent)
    os.close(handle)
    try:
        done = subprocess.run(
            [*command, str(SOURCE), "-o", made, "-lm", "-Wl,--unresolved-symbols=ignore-all"],
            capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise NotCompiled(f"{command[0]} cannot compile the native kernels: {said[0][:200]}")
        with open(made, "ab") as opened:  # a loader ignores what follows the last section
            opened.write(digest(Path(made)).encode())
        os.chmod(made, 0o700)
        os.replace(made, file)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotCompiled(f"{command[0]} cannot compile the native kernels: {first_line(error)}") from error
    finally:
        Path(made).unlink(missing_ok=True)


def _is_whole(file: Path) -> bool:
    """Whether a library is as it was compiled. One that a full disk has cut off would end the process with a signal."""
    content = file.read_bytes()
    return hashlib.sha256(content[:-DIGEST]).hexdigest().encode() == content[-DIGEST:]


def _folder() -> Path:
    """The user's cache folder; where others can write to it or this user cannot, one of this process."""
    return private_folder(user_cache())


def _digest(command: list[str]) -> str:
    version = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=False).stdout
    said = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    processor = re.findall(r"^(?:model name|flags|Features|CPU part)\s*:.*$", said, re.MULTILINE)
    content = [SOURCE.read_text(encoding="utf-8"), *command, version, platform.machine(), *sorted(set(processor))]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:16]


def _share_openmp() -> None:
    """Make the symbols of the OpenMP library that torch has loaded visible.

    Two libraries would have two teams of threads, which wait for each other's cores.
    """
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    for file in sorted(set(re.findall(r"(/\S*lib(?:gomp|iomp5|omp)[^/\s]*\.so[^/\s]*)", maps))):
        ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
        return
    raise NotCompiled("torch has loaded no OpenMP library")


# Standardised rows, draws and Algorithm 1 on rows in the CPU's memory, by `kernels.c`.
#
# For a vocabulary of 8,000 torch takes 140 us to soften a row and draw from it, and 80 more to verify a proposal: as
# much as half a step of a small model. What is not for rows that the kernels read, or for a machine without them, its
# caller does in torch.
#
# Shapes: G drafted tokens, L positions, V tokens of the vocabulary.


def standardised(
    logits_LV: Tensor, temperature: float, top_k: int | None, top_p: float | None, size: int
) -> Tensor | None:
    """`sampling.standardise` at T > 0: probabilities [L, size], fp32; NaN for a row without a finite maximum.

    None: not for these rows, or not on this machine.
    """
    if logits_LV.dtype not in (torch.float32, torch.bfloat16) or not _is_read(logits_LV) or logits_LV.requires_grad:
        return None
    if isinstance(kernels := found(), NotCompiled):
        return None
    rows, is_short = len(logits_LV), logits_LV.dtype == torch.bfloat16
    out_LV, how = torch.empty(rows, size), RawSampling.of(temperature, top_k, top_p)
    read, written = logits_LV.data_ptr(), out_LV.data_ptr()
    kernels.standardise(read, is_short, logits_LV.stride(0), written, rows, size, ctypes.byref(how))
    return out_LV


def drawn(weights_LV: Tensor, uniform_L: Tensor) -> Tensor | None:
    """One token [L] from each row of fp32 weights, -1 from one that is not finite; `uniform_L` is fp64.

    None: not for these rows, or not on this machine.
    """
    if not _are_whole_rows(weights_LV) or not uniform_L.is_contiguous() or isinstance(kernels := found(), NotCompiled):
        return None
    rows, size = weights_LV.shape
    tokens_L = torch.empty(rows, dtype=torch.long)
    kernels.draw(weights_LV.data_ptr(), rows, size, uniform_L.data_ptr(), tokens_L.data_ptr())
    return tokens_L


def are_verified(p_GV: Tensor, q_GV: Tensor | None) -> bool:
    """Whether `verified` reads these rows, on this machine."""
    return _are_whole_rows(p_GV) and (q_GV is None or _are_whole_rows(q_GV)) and is_available()


def verified(
    p_GV: Tensor, q_GV: Tensor | None, drafted_G: Sequence[int], uniform_G: Tensor, uniform: float, least: float
) -> tuple[int, int]:
    """How many of `drafted_G` Algorithm 1 accepts, and the token that follows them: -1 if its law is not finite.

    Args:
        p_GV: the target's rows, at least one more than there are drafted tokens.
        q_GV: the draft's rows; None where each token had all mass.
        drafted_G: the drafted tokens.
        uniform_G: the random number of each test, fp32.
        uniform: that of the draw.
        least: the mass of a residual that is more than rounding.

    Raises:
        ValueError: there are too few rows or numbers, or a token is not in the vocabulary.
    """
    count, size = len(drafted_G), p_GV.shape[-1]
    fits = len(p_GV) > count and (q_GV is None or (len(q_GV) >= count and q_GV.shape[-1] == size))
    if not fits or len(uniform_G) < count or not all(0 <= token < size for token in drafted_G):
        raise ValueError(f"rows {tuple(p_GV.shape)} of p do not fit q or the drafted tokens {list(drafted_G)}")
    room_V, token = torch.empty(size), ctypes.c_int64()
    accepted = library().verify(
        p_GV.data_ptr(), None if q_GV is None else q_GV.data_ptr(), (ctypes.c_int64 * count)(*drafted_G), count,
        uniform_G.data_ptr(), uniform, least, size, room_V.data_ptr(), ctypes.byref(token),
    )  # fmt: skip
    return accepted, token.value


def _are_whole_rows(rows_LV: Tensor) -> bool:
    """Whether these are rows of floats one after another."""
    return rows_LV.dtype == torch.float32 and _is_read(rows_LV) and rows_LV.is_contiguous()


def _is_read(rows_LV: Tensor) -> bool:
    """Whether the kernels can read these rows: numbers in the CPU's memory, not those of a graph being captured."""
    return type(rows_LV) is torch.Tensor and rows_LV.is_cpu and rows_LV.dim() == 2 and rows_LV.stride(-1) == 1
