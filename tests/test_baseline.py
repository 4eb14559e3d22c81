"""`specbench check`: numbers that moved are named."""

from pathlib import Path

import pytest

from specbench import store
from specbench.cli import main

SUMMARY = {
    "target": "t", "draft": "d", "task": "ende", "temperature": 0.0, "gamma": 3, "device": "cpu", "dtype": "float32",
    "alpha": 0.6, "alpha_low": 0.55, "alpha_high": 0.65, "speedup_measured": 1.5, "lossless": True, "hardware": "x",
}  # fmt: skip


@pytest.fixture
def baseline(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Path:
    store.write(tmp_path, {"run_id": "a", "summary": SUMMARY})
    file = tmp_path / "baseline.json"
    assert main(["check", "--against", str(file), "--results", str(tmp_path), "--write"]) == 0
    capfd.readouterr()
    return file


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"alpha": 0.64, "speedup_measured": 1.3}, None),
        ({"alpha": 0.5}, "alpha 0.500 left [0.550, 0.650]"),
        ({"speedup_measured": 1.2}, "speedup 1.20 is more than 15% below 1.50"),
        ({"lossless": False, "speedup_measured": None}, "the texts are not the target's own"),
        ({"gamma": 4}, "gamma=3 device=cpu dtype=float32: no record"),
    ],
)
def test_what_moved(
    baseline: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], changes: dict[str, object], said: str | None
) -> None:
    store.write(tmp_path, {"run_id": "a", "summary": SUMMARY | changes})
    code = main(["check", "--against", str(baseline), "--results", str(tmp_path)])
    err = capfd.readouterr().err
    assert code == (0 if said is None else 1)
    assert (said or "") in err


def test_a_baseline_that_cannot_be_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--against", str(tmp_path / "none.json")]) == 2
    assert "--against" in capfd.readouterr().err
