"""Of several records that fit a cell one is taken: by size, not by speed; and the cell says so."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specbench.cli import main
from specbench.records.catalog import digest
from specbench.records.cells import choose, remark
from specbench.records.frame import Records
from specbench.records.keeping import keep
from specbench.report.tables import TABLES
from tests.support.made_records import make

Capture = pytest.CaptureFixture[str]


def speed(value: float) -> dict[str, Any]:
    return {"speedup_measured": value, "speedup_low": value - 0.1, "speedup_high": value + 0.1}


def test_size_decides_then_the_date() -> None:
    frame = pd.DataFrame({
        "cell": ["a", "a", "a", "b", "b", "c"], "prompts": [10, 30, 30, 5, 5, 7],
        "created": ["5", "1", "2", "1", "2", "1"], "run_id": list("uvwxyz"),
    })  # fmt: skip
    chosen = choose(frame, ["cell"])
    assert chosen["run_id"].tolist() == ["w", "y", "z"]
    said = [remark(fitting, why) for fitting, why in zip(chosen["fitting"], chosen["chosen_for"], strict=True)]
    assert said == ["newest of 3", "newest of 2", ""]
    again = choose(chosen, ["created"], ("prompts",))
    assert again["fitting"].tolist() == [5, 1] and again["run_id"].tolist() == ["w", "z"]


def test_no_record_is_no_choice() -> None:
    chosen = choose(pd.DataFrame({"cell": [], "prompts": [], "created": []}), ["cell"])
    assert chosen.empty and {"fitting", "chosen_for"} <= set(chosen.columns)


def test_many_prompts_come_before_a_higher_speed(tmp_path: Path) -> None:
    make(tmp_path, prompts=20, **speed(1.77))
    large = make(tmp_path, prompts=30, **speed(1.33))
    table = TABLES["table2"](Records(tmp_path))
    assert table.values["run_id"].dropna().tolist() == [large]
    assert table.shown["record"].tolist()[-1] == f"{digest(large)} (most prompts of 2)"
    assert "(most prompts of 3) after a record: 3 records fit the row" in " ".join(table.notes)


def test_of_the_same_prompts_the_fastest_gamma_but_the_newest_of_a_gamma(tmp_path: Path) -> None:
    make(tmp_path, gamma=3, **speed(1.2))
    make(tmp_path, gamma=5, seed=1, created="2026-01-01T00:00:00+00:00", **speed(1.9))
    newer = make(tmp_path, gamma=5, seed=2, created="2026-05-01T00:00:00+00:00", **speed(1.5))
    shown = TABLES["table2"](Records(tmp_path)).shown
    assert (shown["γ"].tolist()[-1], shown["record"].tolist()[-1]) == ("5", f"{digest(newer)} (fastest of 3)")
    every = TABLES["table4"](Records(tmp_path)).shown["record"].tolist()[-1]
    assert every == f"{digest(newer)} (newest of 2)"


def test_the_rows_of_the_paper_say_how_many_records_fit(tmp_path: Path) -> None:
    names = {"target": "t5-xxl", "draft": "t5-small", "task": "ende", "gamma": 7}
    make(tmp_path, seed=1, **names)
    large = make(tmp_path, prompts=40, **names)
    for name, why in {"table2": "prompts", "table3": "tokens", "table4": "prompts"}.items():
        records = [str(record) for record in TABLES[name](Records(tmp_path)).shown["record"]]
        assert f"{digest(large)} (most {why} of 2)" in records


def test_small_records_fill_no_table_unless_asked(tmp_path: Path, capsys: Capture) -> None:
    small = make(tmp_path, prompts=4)
    assert main(["tables", "table2", f"results={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert digest(small) not in out
    assert "left out: 1 records of fewer than 20 prompts; `specbench tables --min-prompts 1` shows them" in out
    assert main(["tables", "table2", f"results={tmp_path}", "--min-prompts", "4"]) == 0
    out = capsys.readouterr().out
    assert digest(small) in out and "left out" not in out
    assert main(["show", "last", f"results={tmp_path}"]) == 0, "a small record can still be shown"


@pytest.mark.parametrize(("verb", "file"), [("tables", "table2.md"), ("figures", "gamma.csv")])
def test_committed_files_are_drawn_from_kept_records_alone(
    verb: str, file: str, tmp_path: Path, capsys: Capture
) -> None:
    name = file.partition(".")[0]
    command = [verb, name, f"results={tmp_path}", "--output", str(tmp_path / verb)]
    first = make(tmp_path)
    keep(Records(tmp_path), print)
    assert main(command) == 0
    committed = tmp_path / verb / file
    before = committed.read_bytes()
    capsys.readouterr()
    toy = make(tmp_path, gamma=5)
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert committed.read_bytes() == before and (tmp_path / "local" / verb / file).is_file()
    assert f"1 records are not in {tmp_path / 'kept'} ({toy}), so {tmp_path / verb} is left as it is" in err
    assert "'specbench report --keep' copies them" in err and str(tmp_path / "local" / verb / file) in out
    keep(Records(tmp_path), print)
    assert main(command) == 0
    assert capsys.readouterr().err == "" and str(tmp_path / verb / file) and first != toy
