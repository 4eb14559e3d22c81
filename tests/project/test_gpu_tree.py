"""`tools/gpu_tree.py`: the smallest tree that runs the parts of the GPU benchmark, and its size."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.paths import ROOT
from tests.support.scripts import loaded

SCRIPT = ROOT / "tools" / "gpu_tree.py"


@pytest.fixture
def script() -> ModuleType:
    return loaded(SCRIPT)


@pytest.fixture
def tracked(monkeypatch: pytest.MonkeyPatch, script: ModuleType) -> list[str]:
    """The repository's files, also where this copy of it is no checkout."""
    below = [file for name in (*script.ALWAYS, "tests") for file in sorted((ROOT / name).rglob("*"))]
    files = [str(file.relative_to(ROOT)) for file in below if file.is_file() and "__pycache__" not in file.parts]
    files += [name for name in script.ALWAYS if (ROOT / name).is_file()]
    answers = {"ls-files": "".join(f"{file}\0" for file in files), "status": "", "rev-parse": "abc\n"}
    monkeypatch.setattr(script, "_git", lambda verb, *_: answers[verb])
    return files


def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *argv: str) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_tree.py", *argv])
    assert script.main() == 0


def test_the_tree_of_all_parts_travels_and_runs(
    script: ModuleType,
    tracked: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "xxhash-1.0-py3-none-any.whl").write_bytes(b"x" * 2**20)
    tree = tmp_path / "tree"
    run(script, monkeypatch, str(tree), "--wheels", str(wheels))
    found = re.search(r": (\d+) files, ([\d.]+) MiB$", capsys.readouterr().out.strip())
    assert found is not None and 1 < float(found[2]) < 50
    assert {path.name for path in (tree / script.MODELS).iterdir()} == {"t5-mini", "t5-nano"}
    assert (tree / "wheels" / "xxhash-1.0-py3-none-any.whl").is_file() and (tree / "tests" / "support").is_dir()
    assert not (tree / "results").exists() and not (tree / "docs").exists()
    done = subprocess.run(
        [sys.executable, str(tree / "experiments" / "bench_gpu.py"), "--list"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "threads-16-large:" in done.stdout
    asked = "import specbench.environment as e; print(e.__file__, e.commit())"
    said = subprocess.run([sys.executable, "-c", asked], cwd=tree, capture_output=True, text=True, check=True)
    assert said.stdout.split() == [str(tree / "specbench" / "environment.py"), "abc"]


def test_parts_that_read_no_model_take_none_along(
    script: ModuleType, tracked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(script, monkeypatch, str(tmp_path / "tree"), "steps", "--add", str(SCRIPT))
    assert not (tmp_path / "tree" / script.MODELS).exists() and not (tmp_path / "tree" / "tests").exists()
    assert (tmp_path / "tree" / "data" / "gpu_tree.py").is_file()


def test_added_files_of_one_name_are_refused(
    script: ModuleType, tracked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """One of them would take the place of the other."""
    files = [tmp_path / folder / "rows.jsonl" for folder in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.write_text(str(file))
    with pytest.raises(SystemExit):
        run(script, monkeypatch, str(tmp_path / "tree"), "steps", "--add", *map(str, files))
    assert "--add: two files are named rows.jsonl; rename one" in capsys.readouterr().err
    assert not (tmp_path / "tree").exists()


def test_a_tree_that_is_too_large_is_refused_and_leaves_nothing(
    script: ModuleType, tracked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "MOST", 2**20)
    with pytest.raises(SystemExit, match=r"MiB, above 1: name fewer parts, or add less"):
        run(script, monkeypatch, str(tmp_path / "tree"))
    assert not (tmp_path / "tree").exists()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["x", "no-part"], "no part no-part: choose among tests"),
        ([str(ROOT)], "exists; name a new folder"),
        (["x", "--wheels", "no-such-folder"], "--wheels no-such-folder: holds no wheels"),
        (["x", "--add", "no-such-file"], "--add no-such-file: no such file"),
    ],
)
def test_mistakes_are_one_line(
    argv: list[str], said: str, script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_tree.py", *argv])
    with pytest.raises(SystemExit):
        script.main()
    assert said in capsys.readouterr().err.splitlines()[-1]
