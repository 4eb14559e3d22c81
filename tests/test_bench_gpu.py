"""`make bench-gpu`: its parts in order, each a command that specbench understands, kept as soon as it has run."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from specbench.cli import main

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "experiments" / "bench_gpu.py"
ORDER = [
    "tests", "pair", "ende-t0", "ende-t1", "cnndm-t0", "cnndm-t1", "steps", "generate", "invariant", "llama",
    "train-target", "train-draft", "tables",
]  # fmt: skip


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_gpu", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_parts_are_listed_in_order_without_any_package() -> None:
    done = subprocess.run([sys.executable, "-S", str(SCRIPT), "--list"], capture_output=True, text=True, check=True)
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ORDER
    assert "device=cuda dtype=bfloat16" in done.stdout


def test_carried_wheels_are_small(script: ModuleType) -> None:
    assert sum(script.WHEELS.values()) < script.MOST_BYTES


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("part", [name for name in ORDER if name not in ("tests", "tables")])
def test_each_part_composes(
    script: ModuleType, part: str, small: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    module, name, *argv = script.words(part, small, "results/gpu")
    assert (module, name) == ("-m", "specbench")
    assert main([*argv, "--cfg", "job"]) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert ("d_model: 4096" in shown) == (part in [*ORDER[2:9]] and not small)


def test_a_part_is_run_once_and_a_failure_is_kept(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "missing", list)
    monkeypatch.setattr(script, "PARTS", {"good": "a", "bad": "b"})
    monkeypatch.setattr(script, "words", lambda part, *_: ["-c", f"print('{part}'); raise SystemExit({part == 'bad'})"])
    monkeypatch.setattr(sys, "argv", ["bench_gpu.py", "--results", str(tmp_path)])
    assert script.main() == 1
    kept = json.loads((tmp_path / "parts.json").read_text())
    assert {part: one["code"] for part, one in kept.items()} == {"good": 0, "bad": 1}
    assert (tmp_path / "good.log").read_text() == "good\n"
    assert script.main() == 1
    out = capfd.readouterr().out
    assert out.count("== good: has run") == 1 and "exit code 1" in out


def test_a_part_ends_after_its_minutes(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "MINUTES", 0.01)
    code, seconds = script.run("long", ["-c", "import time; time.sleep(60)"], tmp_path / "log", {})
    assert code == 124 and seconds < 10


def test_what_is_missing_is_named_with_the_way_out(script: ModuleType, tmp_path: Path) -> None:
    script.WHEELS = {"no-such-package==1.0": 1}
    with pytest.raises(SystemExit, match=r"not installed: no-such-package==1.0: give --wheels FOLDER"):
        script.environment(None, tmp_path)
