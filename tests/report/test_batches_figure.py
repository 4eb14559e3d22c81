"""Records of several prompts at once: a figure of their own, and no cell of a table that is about one."""

import shutil
from pathlib import Path

import pytest

from specbench.records.frame import Records
from specbench.report.figures.batches import batches
from specbench.report.table import render
from specbench.report.tables import TABLES

KEPT = Path(__file__).parents[2] / "results" / "kept"


@pytest.fixture
def records(tmp_path: Path) -> Records:
    (tmp_path / "kept").mkdir()
    for file in [*KEPT.glob("t5-mini-t5-nano-ende-mini-T0-g4-b*"), *KEPT.glob("t5-mini-t5-nano-ende-mini-T0-g5-*")]:
        shutil.copy(file, tmp_path / "kept")
    return Records(tmp_path, 20)


def test_they_fill_no_cell_of_a_table(records: Records) -> None:
    assert len(records.batches) == 4
    assert (records.every["batch"] == 1).all() and len(records.every) > 0
    ids = {run_id.rpartition("-")[2] for run_id in records.batches["run_id"]}
    for name, make in TABLES.items():
        shown = render(make(records), "markdown")
        assert not [one for one in ids if one in shown], name


def test_the_figure_draws_each_batch_beside_what_was_expected(records: Records) -> None:
    values = batches(records).points
    assert list(values["batch"]) == [2, 4, 8, 16]
    assert ((values["expected"] / values["speedup_measured"] - 1).abs() < 0.07).all()
    assert (values["saturated"] < values["expected"]).all()
