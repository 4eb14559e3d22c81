"""Rows as a table, CSV or JSON: stdout holds the rows and nothing else."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from specbench.cli import main
from specbench.cli.formats import aside, plain, print_rows

pytestmark = pytest.mark.usefixtures("short_probes")
Capture = pytest.CaptureFixture[str]
ROWS = [{"name": "a", "alpha": {"value": 0.5, "low": None}, "list": [1]}, {"name": "b", "c": float("nan")}]


def test_csv_has_a_line_a_row_and_dotted_names(capfd: Capture) -> None:
    print_rows("csv", ROWS, lambda: None, columns=("id", "name"))
    first, second = csv.DictReader(io.StringIO(capfd.readouterr().out))
    assert first == {"id": "", "name": "a", "alpha.value": "0.5", "alpha.low": "", "c": ""}
    assert second["name"] == "b" and second["c"] == ""


def test_json_is_the_rows_or_the_document(capfd: Capture) -> None:
    print_rows("json", ROWS, lambda: None)
    assert json.loads(capfd.readouterr().out)[1] == {"name": "b", "c": None}
    print_rows("json", ROWS, lambda: None, document={"rows": np.float64(2.0)})
    assert json.loads(capfd.readouterr().out) == {"rows": 2.0}


def test_a_table_may_have_lines_around_it(capfd: Capture) -> None:
    print_rows("table", ROWS, lambda: print("drawn"))
    print("a remark", file=aside("table"))
    print("another", file=aside("csv"))
    assert capfd.readouterr() == ("drawn\na remark\n", "another\n")
    assert plain({"n": np.int64(3), "x": [np.nan, (1,)]}) == {"n": 3, "x": [None, [1]]}


@pytest.fixture
def small(folders: dict[str, Path], tmp_path: Path) -> list[str]:
    """The keys of a very short measurement."""
    return [
        f"target.path={folders['t5']}", f"draft.path={folders['t5-draft']}", "task=ende",
        f"task.path={folders['rows']}", "limit=2", "dtype=float32", "device=cpu", "threads=1", "max_new_tokens=4",
        f"results={tmp_path}",
    ]  # fmt: skip


QUICK = ["engine=eager", "resamples=100"]
VERBS = {
    "run": [*QUICK, "warmup=0", "gamma=2"],
    "sweep": [*QUICK, "warmup=0", "gamma=1,2"],
    "alpha": [*QUICK, "tokens=8", "sampling.temperature=0"],
    "recommend": [*QUICK, "tokens=8", "gammas=[1,2]", "rounds=2"],
    "validate": [*QUICK, "tokens=8", "gammas=[1]", "rounds=2", "repeats=1"],
    "bench": ["engine=eager", "gammas=[2]", "parts=a", "repeats=1"],
    "beam": ["width=2", "u=[2]", "gamma=[1]"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_that_measures_prints_rows_alone(verb: str, small: list[str], capfd: Capture) -> None:
    assert main([verb, *small, *VERBS[verb], "--format", "json"]) == 0
    document = json.loads(capfd.readouterr().out)
    rows = document if isinstance(document, list) else document["rows"]
    assert len(rows) >= 1 and all(isinstance(row, dict) for row in rows)
    if verb in ("run", "sweep"):  # the others take longer, and CSV is made by the same function
        assert main([verb, *small, *VERBS[verb], "format=csv"]) == 0
        table = list(csv.DictReader(io.StringIO(capfd.readouterr().out)))
        assert [row["run_id"] for row in table] == [row["run_id"] for row in rows]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "run"])
def test_a_folder_that_cannot_be_written_is_found_before_the_work(
    verb: str, small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    monkeypatch.setattr("specbench.loading.model_loader.load_model", None)  # no model is loaded
    (tmp_path / "file").write_text("")
    assert main([verb, *small, *VERBS[verb], f"results={tmp_path}/file"]) == 1
    err = capfd.readouterr().err
    assert err.startswith(f"specbench: {tmp_path}/file") and err.count("\n") == 1
    assert "cannot be written" in err and "set results=FOLDER to another place" in err
