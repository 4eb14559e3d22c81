"""Build the checks of the C kernels for 64-bit ARM and run them under an emulator: `make test-arm`.

    python tools/kernels_on_arm.py [--install | --require] [--source kernels.c]

By GCC and by clang, for NEON, for NEON with dot products of bytes, for SVE of 128 and of 256 bits, and for SVE2; on two
processes some two minutes. What is missing is named in one line, and what can be run is run. With `--install` missing
packages are installed by apt-get, if it is there and permitted. `--require` also installs them. Exit code 1: a kernel
is wrong, or, with `--require`, a program is missing even so.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CHECKS = {"kernels": ROOT / "tests/kernels/native_check.c", "passes": ROOT / "tests/kernels/native_passes_check.c"}
EMULATOR = "qemu-aarch64-static"
COMPILER, HEADERS = "aarch64-linux-gnu-gcc", "headers of aarch64-linux-gnu"
PACKAGES = {
    EMULATOR: "qemu-user-static",
    COMPILER: "gcc-aarch64-linux-gnu",
    HEADERS: "libc6-dev-arm64-cross",  # which the compiler's package only recommends
    "clang": "clang",
}
COMPILERS = {
    "gcc": [COMPILER, "-fopenmp"],
    "clang": ["clang", "--target=aarch64-linux-gnu"],  # which has no OpenMP for ARM here: the kernels' own threads
}
BUILDS = {
    "NEON": "armv8.2-a",
    "NEON, dot products": "armv8.2-a+dotprod",
    "SVE": "armv8.2-a+sve",
    "SVE2": "armv8.5-a+sve2",
}
MACHINES = [
    ("NEON", 128),
    ("NEON, dot products", 128),
    ("SVE", 128),
    ("SVE", 256),
    ("SVE2", 128),
]  # builds, and bits of a register of SVE
INSTALL_S, COMPILE_S, RUN_S = 300, 600, 600


class Case(NamedTuple):
    """One check, built by one compiler for one kind of machine, and run with these sizes of registers."""

    compiler: str
    build: str
    check: str

    def results(self, source: Path, folder: Path) -> list[str]:
        """A line for each size of registers; those that do not begin with 'passed' are faults."""
        sys.path.insert(0, str(ROOT))
        from specbench.kernels import PORTABLE

        program = folder / "-".join(self)
        command = [
            *COMPILERS[self.compiler], *PORTABLE, f"-march={BUILDS[self.build]}", "-Wno-psabi",
            f'-DKERNELS="{source}"', str(CHECKS[self.check]), "-static", "-o", str(program), "-lm", "-lpthread",
        ]  # fmt: skip
        try:
            made = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S)
        except subprocess.TimeoutExpired:
            return [f"failed: {self}: not compiled within {COMPILE_S} s"]
        if made.returncode:
            return [f"failed: {self}: {(made.stderr.strip().splitlines() or ['no reason'])[0]}"]
        return [self._ran(program, bits) for build, bits in MACHINES if build == self.build]

    def _ran(self, program: Path, bits: int) -> str:
        processor = f"max,sve-default-vector-length={bits // 8}"
        command = [EMULATOR, "-cpu", processor, str(program)]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S)
        except subprocess.TimeoutExpired:
            return f"failed: {self} of {bits} bits: not done within {RUN_S} s"
        said = (ran.stdout.strip().splitlines() or [f"exit code {ran.returncode}"])[0 if ran.returncode else -1]
        size = "" if self.build.startswith("NEON") else f" of {bits} bits"
        word = "passed" if ran.returncode == 0 and said.startswith("passed") else "failed"
        return f"{word}: {self.compiler}, {self.build}{size}, {self.check}: {said}"


def missing() -> list[str]:
    """Programs that are not installed, and the C library's headers if the compiler finds none."""
    lacking = [name for name in PACKAGES if name != HEADERS and shutil.which(name) is None]
    includes = [COMPILER, "-E", "-include", "stdio.h", "-x", "c", os.devnull]
    if COMPILER in lacking or subprocess.run(includes, capture_output=True).returncode:
        lacking.append(HEADERS)
    return lacking


def install(names: list[str]) -> None:
    """Install the packages of programs, of a fresh list of packages, if possible and permitted."""
    first = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if shutil.which("apt-get") is None or (first and shutil.which("sudo") is None):
        return
    try:
        for words in (["update"], ["install", "-y", "--no-install-recommends", *(PACKAGES[name] for name in names)]):
            subprocess.run([*first, "apt-get", *words], capture_output=True, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        return


def cases(lacking: list[str]) -> Iterator[Case]:
    """What can be run without the programs `lacking`; clang takes the C library of GCC's package."""
    if {EMULATOR, COMPILER, HEADERS} & set(lacking):
        return
    for check in CHECKS:
        for compiler in COMPILERS:
            if COMPILERS[compiler][0] not in lacking:
                yield from (Case(compiler, build, check) for build in BUILDS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--install", action="store_true", help="install what is missing by apt-get, where that is there"
    )
    parser.add_argument("--require", action="store_true", help="install it, and fail where that is not possible")
    parser.add_argument("--source", type=Path, default=ROOT / "specbench/kernels/kernels.c", help="the kernels")
    given = parser.parse_args()
    if (given.install or given.require) and (lacking := missing()):
        install(lacking)
    if lacking := missing():
        print(f"not here: {', '.join(lacking)} (package {', '.join(PACKAGES[name] for name in lacking)})")
        if given.require:
            return 1
    chosen = list(cases(lacking))
    if not chosen:
        print("the kernels were not run for 64-bit ARM")
        return 0
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        for lines in pool.map(lambda case: case.results(given.source, Path(folder)), chosen):
            print("\n".join(lines), flush=True)
            wrong += sum(not line.startswith("passed") for line in lines)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
