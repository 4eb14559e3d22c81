"""Rows as a table, CSV or JSON: stdout holds the rows and nothing else."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.color import ColorSystem
from rich.table import Table as RichTable

from specbench.cli import main
from specbench.cli.formats import aside, plain, print_rows
from specbench.escaping import CONTROL
from specbench.report.console import terminal
from specbench.report.table import Table
from specbench.report.table import csv as report_csv
from tests.support.made_records import make

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


QUICK = ["engine=eager"]
VERBS = {
    "run": [*QUICK, "warmup=0", "gamma=2"],
    "sweep": [*QUICK, "warmup=0", "gamma=1,2"],
    "alpha": [*QUICK, "tokens=8", "sampling.temperature=0"],
    "recommend": [*QUICK, "tokens=8", "gammas=[1,2]", "rounds=2"],
    "recommend --validate": [*QUICK, "tokens=8", "gammas=[1]", "rounds=2", "repeats=1"],
    "bench": ["engine=eager", "gammas=[2]", "parts=a", "repeats=1"],
    "bench beam": ["width=2", "u=[2]", "gamma=[1]"],
}


@pytest.mark.full
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_that_measures_prints_rows_alone(verb: str, small: list[str], capfd: Capture) -> None:
    assert main([*verb.split(), *small, *VERBS[verb], "--format", "json"]) == 0
    document = json.loads(capfd.readouterr().out)
    rows = document if isinstance(document, list) else document["rows"]
    assert len(rows) >= 1 and all(isinstance(row, dict) for row in rows)
    if verb in ("run", "sweep"):  # the others take longer, and CSV is made by the same function
        assert main([*verb.split(), *small, *VERBS[verb], "format=csv"]) == 0
        table = list(csv.DictReader(io.StringIO(capfd.readouterr().out)))
        assert [row["run_id"] for row in table] == [row["run_id"] for row in rows]


@pytest.mark.full
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "run"])
def test_a_folder_that_cannot_be_written_is_found_before_the_work(
    verb: str, small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    monkeypatch.setattr("specbench.loading.model_loader.load_model", None)  # no model is loaded
    (tmp_path / "file").write_text("")
    assert main([*verb.split(), *small, *VERBS[verb], f"results={tmp_path}/file"]) == 1
    err = capfd.readouterr().err
    assert err.startswith(f"specbench: {tmp_path}/file") and err.count("\n") == 1
    assert "cannot be written" in err and "set results=FOLDER to another place" in err


FORMULAS = {"=1+1": "'=1+1", "@SUM(A1)": "'@SUM(A1)", "+cmd": "'+cmd", "-cmd": "'-cmd", "\r=1": "'=1"}
NUMBERS = {"-0.5": "-0.5", "+1.5": "+1.5", "a=b": "a=b", "\x1b[31mred": "[31mred"}


def test_no_cell_of_a_csv_is_a_formula(capfd: Capture) -> None:
    """Spreadsheets compute cells that begin with =, @, + or -, also those of a record of someone else's."""
    rows = [{"name": text, "speed": -0.5, "=head": 1} for text in FORMULAS | NUMBERS]
    print_rows("csv", rows, lambda: None)
    found = list(csv.DictReader(io.StringIO(capfd.readouterr().out)))
    assert [row["name"] for row in found] == [*FORMULAS.values(), *NUMBERS.values()]
    assert {(row["speed"], row["'=head"]) for row in found} == {("-0.5", "1")}
    frame = pd.DataFrame({"name": [*FORMULAS, None, "x"], "speed": -0.5, "same": [True, *[None] * 6]})
    table = report_csv(Table("t", "T", frame, frame))
    assert [row["name"] for row in csv.DictReader(io.StringIO(table))] == [*FORMULAS.values(), "", "x"]
    assert table.splitlines()[1] == "'=1+1,-0.5,True"


def test_the_screen_shows_brackets_and_no_control_characters() -> None:
    """`[red]` was eaten, `[/]` was a traceback, and a record could move the cursor."""
    screen = io.StringIO()
    table = RichTable("name [b]")
    table.add_row("[red]a[/]\x1b]0;title\x07\x1b[2J\x9b31m")
    console = terminal(screen)
    console.print("target [red] [/nothing] \x1b[31mred")
    console.print(table)
    shown = screen.getvalue()
    assert "target [red] [/nothing] [31mred\n" in shown and "name [b]" in shown and "[red]a[/]]0;title[2J31m" in shown
    assert CONTROL.search(shown) is None


def test_the_colours_of_the_screen_itself_remain() -> None:
    screen = io.StringIO()
    console = terminal(screen)
    console._force_terminal, console.no_color = True, False
    console._color_system = ColorSystem.STANDARD
    console.print("[bold]name[/bold]", markup=True)
    assert screen.getvalue() == "\x1b[1mname\x1b[0m\n"


def test_records_are_shown_as_they_are_named(tmp_path: Path, capfd: Capture) -> None:
    name = "[red]x[/blue]"
    run_id = make(tmp_path, target=name.replace("/", ""), summary_target=f"{name}\x1b[2J\n", draft="unigram")
    for argv in (
        ["results"],
        ["show", run_id],
        ["explain", run_id],
        ["explain", run_id, "--within", "2%"],
        ["results", "--by", "position"],
    ):
        assert main([*argv, "--results", str(tmp_path)]) == 0
        out = capfd.readouterr().out
        assert CONTROL.search(out) is None
        assert name in out or "--within" in argv


@pytest.mark.full
@pytest.mark.parametrize("words", [["--help"], ["list", "accept"], ["run", "--help"], ["gama"]])
def test_a_terminal_without_greek_letters(words: list[str]) -> None:
    """As with LC_ALL=C where Python's UTF-8 mode is off, or on a Latin-1 terminal."""
    here = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    here.pop("PYTHONIOENCODING", None)
    done = subprocess.run([sys.executable, "-m", "specbench", *words], env=here, capture_output=True, check=False)
    assert done.returncode == (2 if words == ["gama"] else 0), done.stderr
    assert b"Traceback" not in done.stderr and (done.stdout + done.stderr).isascii()
