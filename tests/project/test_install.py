"""Both kinds of installation find `conf/`, `experiments/` and what ships."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from specbench.config.paths import PACKAGE, conf_dir, shipped
from tests.support.paths import ROOT


def test_a_checkout_finds_its_conf() -> None:
    assert conf_dir() == ROOT / "conf"
    assert shipped("data", "ende-mini.jsonl.gz").is_file()
    assert PACKAGE.parent == ROOT


@pytest.mark.slow
def test_a_wheel_holds_and_finds_everything(tmp_path: Path) -> None:
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    if subprocess.run(wheel, capture_output=True).returncode:
        pytest.skip("the build backend cannot be fetched")
    (file,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        archive.extractall(site)
    for wanted in ("specbench/conf/run.yaml", "specbench/shipped/data/ende-mini.jsonl.gz", "specbench/experiments/"):
        assert any(name.startswith(wanted) for name in names)
    run = "from specbench.cli import main; sys.exit(main(['run', 'gamma=0']))"
    code = f"import sys; sys.path.insert(0, {str(site)!r}); {run}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "specbench: gamma=0: must be from 1 to 64, or auto | adaptive | heuristic\n"
