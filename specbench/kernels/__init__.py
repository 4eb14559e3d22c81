"""`kernels.c` and its headers, compiled for this machine by the C compiler that is there, once, and loaded.

`engine.native` makes programs of its operations; `rows` draws from a row of logits and accepts by it; `levels` rounds
weights to few bits.

The library lies in the user's cache folder, under a digest of the sources, the compiler and the processor, so that
machines that share a home folder do not share it unless they are alike. It uses the threads of torch's own OpenMP.
"""

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from specbench.errors import MachineError, first_line
from specbench.files import digest, is_own, own_cache
from specbench.kernels.structures import layout, layout_of

SOURCE = Path(__file__).parent / "kernels.c"
PORTABLE = ("-O3", "-fopenmp", "-fno-math-errno", "-fno-trapping-math")
ON_ARM = ("-ffp-contract=off",)  # products and sums are fused where the kernels say so: one row as in many
FLAGS = (
    *PORTABLE,
    "-march=native",
    "-fPIC",
    "-shared",
    *(ON_ARM if platform.machine() in ("aarch64", "arm64") else ()),
)
QUIET = ("-Wno-psabi",)  # vectors wider than this processor has are passed between functions of ours only
COMPILERS = ("cc", "gcc", "clang")
PATIENCE_S = 120
DIGEST = 64  # the last characters of a library: a digest of all before them


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
    _require_same_layout(loaded)
    loaded.uses_tiles.restype, loaded.uses_tiles.argtypes = ctypes.c_int64, []
    loaded.packed_size.restype = ctypes.c_int64
    loaded.packed_size.argtypes = [ctypes.c_int64] * 2
    for written in (loaded.pack, loaded.run, loaded.standardise, loaded.likeliest, loaded.draw):
        written.restype = None
    loaded.pack.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 3
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    loaded.levels_size.restype, loaded.levels_size.argtypes = number, [number] * 3
    loaded.pack_levels.restype, loaded.pack_levels.argtypes = None, [pointer] * 3 + [number] * 3
    loaded.attend_room.restype, loaded.attend_room.argtypes = number, [number]
    loaded.shared_room.restype, loaded.shared_room.argtypes = number, [number] * 5
    loaded.run.argtypes = [pointer, pointer, pointer, number, number]
    loaded.rollout.restype = number
    loaded.rollout.argtypes = [pointer, number, pointer, pointer, pointer, number, number]
    loaded.speculate.restype, loaded.speculate.argtypes = number, [pointer] * 4 + [number] * 2
    loaded.mix_experts.restype = None
    loaded.mix_experts.argtypes = [pointer] * 4 + [number] * 3 + [pointer] * 3 + [number] * 2
    loaded.standardise.argtypes = [pointer, number, number, pointer, number, number, pointer]
    loaded.likeliest.argtypes = [pointer, number, number, number, number, pointer]
    loaded.draw.argtypes = [pointer, number, number, pointer, pointer]
    loaded.verify.restype = number
    loaded.verify.argtypes = [pointer] * 3
    return loaded


def _require_same_layout(loaded: ctypes.PyDLL) -> None:
    """Raise MachineError where the kernels lay out an operation or a structure otherwise than `structures` does."""
    ours, theirs = layout(), layout_of(loaded)
    for name in (*ours, *theirs):
        if ours.get(name) != theirs.get(name):
            raise MachineError(
                f"{SOURCE.parent}: {name} is {theirs.get(name, 'missing')} in kernels.c and "
                f"{ours.get(name, 'missing')} in structures.py: install specbench again"
            )


def sources() -> dict[str, str]:
    """The text of `kernels.c` and of each header that it includes, by name."""
    files = [SOURCE, *sorted(SOURCE.parent.glob("*.h"))]
    return {file.name: file.read_text(encoding="utf-8") for file in files}


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
    return own_cache()


def _digest(command: list[str]) -> str:
    version = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=False).stdout
    said = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    processor = re.findall(r"^(?:model name|flags|Features|CPU part)\s*:.*$", said, re.MULTILINE)
    content = [*sources().values(), *command, version, platform.machine(), *sorted(set(processor))]
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
