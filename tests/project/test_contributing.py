"""CONTRIBUTING's examples run as they are printed: as a part of specbench, and as another package."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from specbench.config.paths import PACKAGE

REPOSITORY = PACKAGE.parent
SIGNS = {"config": "class RepeatConfig", "draft": "class RepeatDraft", "choice": "kind: repeat", "rule": "class Floor("}


@cache
def printed(name: str) -> str:
    """One of the examples' blocks."""
    page = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = [
        re.sub(rf"^{indent}", "", code, flags=re.M)
        for indent, code in re.findall(r"^( *)```(?:python|yaml)\n(.*?)^ *```", page, flags=re.M | re.S)
    ]
    (found,) = [block for block in blocks if SIGNS[name] in block]
    return found


def inside(folder: Path) -> Path:
    """A copy of the repository with the examples where the page puts them. Returns what is to be imported from."""
    ignored = shutil.ignore_patterns("shipped", "__pycache__")
    package = Path(shutil.copytree(PACKAGE, folder / "specbench", ignore=ignored))
    (package / "shipped").symlink_to(PACKAGE / "shipped")
    shutil.copytree(REPOSITORY / "conf", folder / "conf")
    method = package / "methods" / "repeat"
    method.mkdir()
    (method / "__init__.py").write_text("")
    for name in ("config", "draft"):
        (method / f"{name}.py").write_text(printed(name))
    with (folder / "conf" / "drafts.yaml").open("a") as file:
        file.write("\n" + printed("choice"))
    kinds = package / "config" / "drafts.py"
    own = "from specbench.methods.repeat.config import RepeatConfig\n\nKINDS"
    text = (
        kinds.read_text()
        .replace("\nKINDS", own, 1)
        .replace("    ParallelConfig,\n", "    ParallelConfig,\n    RepeatConfig,\n")
    )
    kinds.write_text(text)
    (package / "algorithm" / "acceptance" / "rules" / "floor.py").write_text(printed("rule"))
    return folder


def installed(folder: Path) -> Path:
    """The examples as another package beside specbench, as an installer lays it out."""
    package, metadata = folder / "repeated", folder / "repeated-0.1.0.dist-info"
    for made in (package, metadata):
        made.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for name, file in (("config", "config"), ("draft", "draft"), ("rule", "floor")):
        (package / f"{file}.py").write_text(printed(name))
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: repeated\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[specbench.drafts]\nrepeat = repeated.config:RepeatConfig\n"
        "[specbench.rules]\nfloor = repeated.floor:FloorConfig\n"
    )
    return folder


@pytest.mark.full
@pytest.mark.parametrize("laid_out", [inside, installed])
def test_the_examples_run_as_they_are_printed(
    laid_out: Callable[[Path], Path], folders: dict[str, Path], tmp_path: Path
) -> None:
    path = [str(laid_out(tmp_path / "site")), str(REPOSITORY)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "HF_HUB_OFFLINE": "1"}
    command = [
        sys.executable, "-m", "specbench", "run", f"target.path={folders['t5']}", "task=ende",
        f"task.path={folders['rows']}", "draft=repeat", "draft.times=2", "accept=floor", "accept.floor=.1",
        "sampling.temperature=1", "gamma=2",
        "device=cpu", "dtype=float32", "engine=eager", "max_new_tokens=6", "warmup=0",
        f"results={tmp_path / 'results'}",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "repeat" in done.stdout and "floor 0.1" in done.stdout, done.stdout
    refused = subprocess.run([*command, "draft.times=0"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert refused.returncode == 2 and "draft.times=0: must be at least 1" in refused.stderr
