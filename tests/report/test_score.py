"""Every printed number has a verdict: by a formula, by a record of the paper's own row, or that there is none."""

import json
from pathlib import Path

import pandas as pd
import pytest

from specbench.cli import main
from specbench.formatting import markdown_table
from specbench.records.frame import Records
from specbench.report.paper import paper
from specbench.report.score import Cell, _cell, cells, counts, overview
from tests.support.made_records import make
from tests.support.paths import ROOT

ROW = {"target": "t5-xxl", "draft": "t5-small", "task": "ende", "temperature": 0.0, "gamma": 7}


def find(scored: list[Cell], table: str, row: str, quantity: str) -> Cell:
    (found,) = [one for one in scored if one["table"] == table and one["quantity"] == quantity and row in one["row"]]
    return found


def test_without_records_only_formulas_are_recomputed(nothing: Records) -> None:
    scored = cells(nothing)
    numbers = counts(scored)
    assert numbers["formulas"] == {
        "recomputed": 28, "reproduced": 0, "too wide": 0, "differs": 4, "not run": 0, "not public": 0
    }  # fmt: skip
    assert numbers["measurements"]["reproduced"] == numbers["measurements"]["differs"] == 0
    assert numbers["measurements"]["not public"] == 6
    assert {one["table"] for one in scored if one["verdict"] == "differs"} == {"A.5"}  # the paper's own trap
    assert len(scored) == sum(sum(of.values()) for of in numbers.values())


def test_every_printed_number_is_there_once(nothing: Records) -> None:
    scored = cells(nothing)
    source = paper()
    assert sum(one["table"] == "1" for one in scored) == 2 * len(source["table1"]["rows"])
    assert sum(one["table"] == "2" for one in scored) == len(source["table2"]["rows"])
    assert sum(one["table"] == "4" for one in scored) == 2 * len(source["table2"]["rows"])
    assert sum(one["table"] == "3" for one in scored) == 2 * len(source["table3"]["rows"])
    assert sum(one["table"] == "5" for one in scored) == 3 * len(source["table5"]["rows"])
    assert len({(one["table"], one["row"], one["quantity"]) for one in scored}) == len(scored)


def test_a_record_of_the_papers_row_is_judged(tmp_path: Path) -> None:
    row = "EnDe, T5-XXL 11B with T5-small 77M, T=0"
    run_id = make(tmp_path, **ROW, alpha=0.75, c=0.02, summary_speedup_measured=3.3, summary_speedup_low=3.2,
                  summary_speedup_high=3.45)  # fmt: skip
    scored = cells(Records(tmp_path))
    judged = find(scored, "2", row, "EMP")
    assert judged["verdict"] == "reproduced" and judged["run_id"] == run_id and judged["printed"] == 3.4
    assert find(scored, "4", row, "c")["verdict"] == "reproduced"
    assert find(scored, "3", row, "α")["run_id"] == run_id
    make(tmp_path, again=1, **ROW, alpha=0.75, c=0.2, created="2027-01-01T00:00:00+00:00", summary_speedup_measured=3.0,
         summary_speedup_low=2.9, summary_speedup_high=3.1)  # fmt: skip
    scored = cells(Records(tmp_path))
    assert find(scored, "4", row, "c")["verdict"] == "differs"


def test_an_interval_is_held_to_what_rounds_to_the_printed_number() -> None:
    cases = ((3.2, 3.35, "reproduced"), (3.2, 3.34, "differs"), (3.46, 3.6, "differs"), (2.4, 4.4, "too wide"))
    for low, high, verdict in cases:
        assert _cell("2", "row", "EMP", 3.4, 1, (low + high) / 2, low, high)["verdict"] == verdict
    assert _cell("3", "row", "α", 0.61, 2, 0.62, 0.6, 0.64)["verdict"] == "reproduced"
    assert _cell("3", "row", "α", 0.61, 2, 0.62, 0.59, 0.65)["verdict"] == "too wide"
    assert _cell("2", "row", "EMP", 3.4, 1)["verdict"] == "not run"
    assert _cell("3", "row", "α", 0.61, 2, public=False)["verdict"] == "not public"


def test_twins_and_simulations_fill_no_cell(tmp_path: Path) -> None:
    make(tmp_path)
    make(tmp_path, **ROW, alpha=0.75, c=0.02, simulated=True)
    assert all(one["run_id"] in (None, "formula") for one in cells(Records(tmp_path)))


@pytest.mark.parametrize("page", ["docs/paper.md", "results/tables/overview.md"])
def test_the_pages_count_what_the_score_says(page: str) -> None:
    """Of each list of the paper's numbers: how many are ours, and why the others are missing."""
    shown = overview(published()).shown
    text = (ROOT / page).read_text(encoding="utf-8")
    if page != "results/tables/overview.md":
        text = text.split("<!-- from: score -->\n")[1].split("\n\n")[0]
    assert markdown_table(shown.columns, shown.itertuples(index=False)).strip() == text.split("missing\n\n")[-1].strip()


def test_the_published_score_is_todays(nothing: Records) -> None:
    """Every printed number is in it, with the formulas' verdicts; the overview counts each number once."""
    scored = cells(nothing)
    keys = ("table", "row", "quantity", "printed", "digits")
    assert [[one[key] for key in keys] for one in published()] == [[one[key] for key in keys] for one in scored]
    formulas = [[one["verdict"] for one in of if one["run_id"] == "formula"] for of in (published(), scored)]
    assert formulas[0] == formulas[1]
    counted = overview(scored)
    assert counted.values["printed"].sum() == len(scored)
    missing = counted.values[counted.values[["differs", "not run", "not public"]].sum(axis=1) > 0]
    assert (missing["why"] != "").all()


def published() -> list[Cell]:
    """The cells of the published score, `results/tables/score.csv`."""
    frame = pd.read_csv(ROOT / "results" / "tables" / "score.csv", dtype={"table": str}).astype(object)
    return frame.where(frame.notna(), None).to_dict("records")  # type: ignore[return-value]


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", "--score", f"results={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    assert "32 formulas (28 recomputed, 4 differs)" in shown and "not public" in shown
    assert main(["tables", "--score", "--format", "json", f"results={tmp_path}"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document["counts"]["formulas"]["recomputed"] == 28
    assert {"printed", "ours", "low", "high", "verdict"} <= set(document["rows"][0])
    assert main(["tables", "table2", "--score", f"results={tmp_path}"]) == 2
    assert "--score: is of all tables, not only of table2" in capsys.readouterr().err
