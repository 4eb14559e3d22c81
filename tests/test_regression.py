"""`specbench compare --baseline`: numbers that moved are named."""

import json
from pathlib import Path

import pytest

from specbench.cli import main
from specbench.records import store

SUMMARY = {
    "target": "t", "draft": "d", "task": "ende", "temperature": 0.0, "gamma": 3, "device": "cpu", "dtype": "float32",
    "alpha": 0.6, "alpha_low": 0.55, "alpha_high": 0.65, "speedup_measured": 1.5, "lossless": True, "hardware": "x",
}  # fmt: skip


@pytest.fixture
def baseline(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Path:
    store.write(tmp_path, {"run_id": "a", "summary": SUMMARY})
    file = tmp_path / "baseline.json"
    assert main(["compare", "--baseline", str(file), "--results", str(tmp_path), "--write"]) == 0
    capfd.readouterr()
    return file


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"alpha": 0.64, "speedup_measured": 1.3}, None),
        ({"alpha": 0.5}, "alpha 0.500 left [0.550, 0.650]"),
        ({"speedup_measured": 1.2}, "speedup 1.20 is more than 15% below 1.50"),
        ({"lossless": False, "speedup_measured": None}, "completions are not the target's own"),
        ({"gamma": 4}, "gamma=3 device=cpu dtype=float32: no record"),
    ],
)
def test_what_moved(
    baseline: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], changes: dict[str, object], said: str | None
) -> None:
    store.write(tmp_path, {"run_id": "a", "summary": SUMMARY | changes})
    code = main(["compare", "--baseline", str(baseline), "--results", str(tmp_path)])
    err = capfd.readouterr().err
    assert code == (0 if said is None else 1)
    assert (said or "") in err


def test_a_baseline_that_cannot_be_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store.write(tmp_path, {"run_id": "a", "summary": SUMMARY})
    assert main(["compare", "--baseline", str(tmp_path / "none.json"), "--results", str(tmp_path)]) == 2
    assert "--baseline" in capfd.readouterr().err
    for content in ("{}", "[1]", '[{"target": "t"}]'):
        (tmp_path / "other.json").write_text(content)
        assert main(["compare", "--baseline", str(tmp_path / "other.json"), "--results", str(tmp_path)]) == 2
        assert "other.json: is not a baseline" in capfd.readouterr().err


def test_speedups_of_other_hardware_are_not_compared_but_alphas_are(
    baseline: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store.write(tmp_path, {"run_id": "a", "summary": SUMMARY | {"speedup_measured": 0.5, "hardware": "y"}})
    assert main(["compare", "--baseline", str(baseline), "--results", str(tmp_path)]) == 0
    assert "1 speedups recorded on other hardware, not compared" in capfd.readouterr().out
    store.write(tmp_path, {"run_id": "a", "summary": SUMMARY | {"alpha": 0.5, "hardware": "y"}})
    assert main(["compare", "--baseline", str(baseline), "--results", str(tmp_path)]) == 1


def test_one_baseline_for_several_kinds_of_device(
    baseline: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    check = ["compare", "--baseline", str(baseline), "--results", str(tmp_path / "gpu")]
    store.write(tmp_path / "gpu", {"run_id": "b", "summary": SUMMARY | {"device": "cuda:0", "hardware": "z"}})
    assert main(check) == 2
    assert "no measurement of this kind of device" in capfd.readouterr().err
    assert main([*check, "--write"]) == 0
    assert [row["device"] for row in json.loads(baseline.read_text())] == ["cpu", "cuda:0"]
    capfd.readouterr()
    assert main(check) == 0
    assert capfd.readouterr().out == "1 measurements, 0 moved\n1 of another kind of device, not compared\n"


def test_a_folder_without_records(baseline: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--baseline", str(baseline), "--results", str(tmp_path / "none")]) == 2
    assert "it has no records" in capfd.readouterr().err


def test_policies_and_trees_do_not_stand_for_each_other(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for number, asked in enumerate(("adaptive", "sequoia 8")):
        summary = SUMMARY | {"gamma": None, "gamma_requested": asked, "alpha": 0.57 + number / 100}
        store.write(tmp_path, {"run_id": asked, "summary": summary})
    file = tmp_path / "baseline.json"
    assert main(["compare", "--baseline", str(file), "--results", str(tmp_path), "--write"]) == 0
    assert [row["gamma"] for row in json.loads(file.read_text())] == ["adaptive", "sequoia 8"]
    assert main(["compare", "--baseline", str(file), "--results", str(tmp_path)]) == 0


@pytest.mark.parametrize("wrong", [{"alpha": "x"}, {"alpha": None}, {"alpha_low": float("nan")}, {"hardware": 3}])
def test_a_damaged_baseline_is_one_line(
    baseline: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], wrong: dict[str, object]
) -> None:
    baseline.write_text(json.dumps([row | wrong for row in json.loads(baseline.read_text())]))
    assert main(["compare", "--baseline", str(baseline), "--results", str(tmp_path)]) == 2
    assert "is not a baseline" in capfd.readouterr().err
