"""`make test-arm`: what it says where its tools are missing, and that it finds a wrong kernel."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.kernels import SOURCE
from tests.support.paths import ROOT
from tests.support.scripts import loaded

TOOL = ROOT / "tools" / "kernels_on_arm.py"
TOOLS = ("aarch64-linux-gnu-gcc", "qemu-aarch64-static", "clang")


def ran(*given: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    variables = None if path is None else {"PATH": path}
    return subprocess.run([sys.executable, TOOL, *given], capture_output=True, text=True, timeout=500, env=variables)


@pytest.mark.parametrize("given", [(), ("--install",)])
def test_without_its_tools_it_names_them_and_ends_well(given: tuple[str, ...], tmp_path: Path) -> None:
    done = ran(*given, path=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    named, ended = done.stdout.splitlines()
    assert named.startswith("not here: qemu-aarch64-static, aarch64-linux-gnu-gcc, clang, ")
    assert ended == "the kernels were not run for 64-bit ARM"


def test_packages_that_cannot_be_installed_end_nothing(tmp_path: Path) -> None:
    """A new machine has no list of packages, or an old one: it is fetched first."""
    log = tmp_path / "log"
    for name, script in (("apt-get", f'echo "$1" >> {log}; exit 100'), ("sudo", 'shift; exec "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    done = ran("--install", path=str(tmp_path))
    assert done.returncode == 0 and done.stdout.startswith("not here: "), done.stderr
    assert log.read_text().split() == ["update", "install"]


def test_where_all_is_required_what_is_missing_is_a_failure(tmp_path: Path) -> None:
    """Continuous integration would say that all kernels are right, and have run none."""
    done = ran("--require", path=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "") and done.stdout.startswith("not here: qemu-aarch64-static, ")


@pytest.mark.full
@pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in TOOLS[:2]), reason="no compiler for 64-bit ARM, or no qemu"
)
def test_a_wrong_kernel_fails(tmp_path: Path) -> None:
    for file in SOURCE.parent.glob("*.[ch]"):
        shutil.copy(file, tmp_path)
    text = (tmp_path / "vectors.h").read_text()
    assert text.count("    return total;\n") == 1
    (tmp_path / "vectors.h").write_text(text.replace("    return total;\n", "    return count == 7 ? 0 : total;\n"))
    tool = loaded(TOOL)
    (line,) = tool.Case("gcc", "NEON", "kernels").results(tmp_path / SOURCE.name, tmp_path)
    assert line.startswith("failed: gcc, NEON, kernels: draw of seven [0, 7]: "), line
