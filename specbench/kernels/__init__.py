"""`kernels.c` and its headers, compiled for this machine by the C compiler that is there, once, and loaded.

`engine.native` makes programs of its operations; `rows` draws from a row of logits and accepts by it; `levels` rounds
weights to few bits.

The library lies in the user's cache folder, under a digest of the sources, the compiler and the processor, so that
machines that share a home folder do not share it unless they are alike. Before its first use `check` compares it with
plain loops; what was found lies beside it. It uses the threads of torch's own OpenMP, or, if the compiler has none, as
Apple's, a team of its own.
"""

import contextlib
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
from specbench.files import PRIVATE, is_own, own_cache, replacing
from specbench.kernels import check
from specbench.kernels.structures import layout, layout_of

SOURCE = Path(__file__).parent / "kernels.c"
# Products and sums are fused only where the kernels say so: a single row is computed as it is among others.
PORTABLE = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
IS_APPLE = sys.platform == "darwin"
OPENMP = "-fopenmp"  # without it the kernels have threads of their own
NO_OPENMP = re.compile(rf"omp\.h|-l\w*omp|{OPENMP}")  # how compilers name what of it they lack: clang's is a package
FLAGS = (*PORTABLE, "-fPIC", "-shared", *(() if IS_APPLE else (OPENMP,)))
# Torch's OpenMP is loaded before the library, whose own references to it need no file.
LINKED = ("-lm", *(() if IS_APPLE else ("-Wl,--unresolved-symbols=ignore-all",)))
SUFFIX = ".dylib" if IS_APPLE else ".so"
TUNED = ("-march=native", "-mcpu=native")  # compilers for Arm may have only the second
QUIET = ("-Wno-psabi",)  # vectors wider than this processor has are passed between functions of ours only
COMPILERS = ("cc", "gcc", "clang")
PATIENCE_S = 600


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
    """The compiled kernels. Raises NotCompiled if there are none."""
    if isinstance(kernels := found(), NotCompiled):
        raise NotCompiled(str(kernels))
    return kernels


def built() -> str:
    """The name of the compiled kernels, with the digest of their sources, the compiler and the processor."""
    return Path(library()._name).stem


def is_available() -> bool:
    """Whether this machine has the kernels, or can compile them."""
    return not isinstance(found(), NotCompiled)


def _loaded() -> ctypes.PyDLL:
    if not sys.platform.startswith(("linux", "darwin")):
        raise NotCompiled(f"native kernels are built on Linux and macOS only, and this is {sys.platform}")
    compiler = os.environ.get("CC", "").strip() or next((name for name in COMPILERS if shutil.which(name)), None)
    if compiler is None:
        raise NotCompiled("there is no C compiler (cc, gcc or clang) on PATH")
    if shutil.which(compiler.split()[0]) is None:
        raise NotCompiled(f"CC={compiler}: there is no such program")
    command = [*compiler.split(), *FLAGS, *QUIET]
    file = _folder() / f"kernels-{_digest(command)}{SUFFIX}"
    known = _found_of(file)
    if known is None:  # missing, cut off, or put there by another user
        _compile(command, file)
    if known is None or not known:
        loaded = _opened(file)
    if known is None:
        known = check.fault_of(loaded) or ""
        _keep_found(file, known)
    if known:
        raise NotCompiled(
            f"the kernels that {compiler} compiled are not used, since {known}; another compiler may be right (CC=...)"
        )
    return loaded


def _opened(file: Path) -> ctypes.PyDLL:
    """The library, with the types of its functions."""
    try:
        if not IS_APPLE:
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
    loaded.standardise.argtypes = [pointer, number, number, pointer, number, number, pointer, number]
    loaded.likeliest.argtypes = [pointer, number, number, number, number, pointer]
    loaded.draw.argtypes = [pointer, number, number, pointer, pointer]
    loaded.verify.restype = number
    loaded.verify.argtypes = [pointer] * 3
    return loaded


def _require_same_layout(loaded: ctypes.PyDLL) -> None:
    """Raise MachineError if the kernels lay out an operation or a structure otherwise than `structures` does."""
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
    handle, made = tempfile.mkstemp(suffix=SUFFIX, dir=file.parent)
    os.close(handle)
    try:
        done = _tried(command, made)
        if done.returncode != 0 and NO_OPENMP.search(done.stderr):
            done = _tried([word for word in command if word != OPENMP], made)
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise NotCompiled(f"{command[0]} cannot compile the native kernels: {said[0][:200]}")
        os.chmod(made, 0o700)
        os.replace(made, file)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotCompiled(f"{command[0]} cannot compile the native kernels: {first_line(error)}") from error
    finally:
        Path(made).unlink(missing_ok=True)


def _tried(command: list[str], made: str) -> "subprocess.CompletedProcess[str]":
    """Run the compiler, tuned for this processor by the option that it has."""
    for tuned in TUNED:
        done = subprocess.run(
            [*command, tuned, str(SOURCE), "-o", made, *LINKED],
            capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        if done.returncode == 0 or (tuned not in done.stderr and tuned.partition("=")[0] not in done.stderr):
            break  # else this compiler does not know the option, or not its value
    return done


def _beside(file: Path) -> Path:
    return file.with_suffix(".checked")


def _found_of(file: Path) -> str | None:
    """The finding of the check of this very library, '' for none; None if it is to be compiled and checked.

    A library that a full disk has cut off would end the process with a signal: its digest differs.
    """
    if not is_own(file) or not is_own(_beside(file)):
        return None
    try:
        held, _, found = _beside(file).read_text(encoding="utf-8").partition("\n")
        return found if hashlib.sha256(file.read_bytes()).hexdigest() == held else None
    except (OSError, UnicodeDecodeError):
        return None


def _keep_found(file: Path, found: str) -> None:
    """Keep what the check found; if it cannot be kept the next process compiles and checks again."""
    with contextlib.suppress(OSError), replacing(_beside(file), PRIVATE) as opened:
        opened.write(f"{hashlib.sha256(file.read_bytes()).hexdigest()}\n{found}".encode())


def _folder() -> Path:
    """The user's cache folder; if others can write to it or this user cannot, one of this process."""
    return own_cache()


def _digest(command: list[str]) -> str:
    version = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=False).stdout
    said = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    processor = re.findall(r"^(?:model name|flags|Features|CPU part)\s*:.*$", said, re.MULTILINE)
    checked = Path(check.__file__).read_text(encoding="utf-8")
    content = [*sources().values(), checked, *command, *TUNED, version, platform.machine(), *sorted(set(processor))]
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
