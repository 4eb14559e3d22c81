"""Records of several prompts at once: a figure of their own, and no cell of a table that is about one."""

from pathlib import Path

import pytest

from specbench.records.frame import Records
from specbench.report.figures.gammas import batches
from specbench.report.table import render
from specbench.report.tables import TABLES
from tests.support.kept_records import CHAIN, HERE, copy_of, kept
from tests.support.made_records import make


@pytest.fixture
def records(tmp_path: Path) -> Records:
    (tmp_path / "kept").mkdir()
    chains = {key: value for key, value in CHAIN.items() if key != "batch"} | {"draft": "t5-nano", "temperature": 0}
    for head in [*kept(**chains, gamma=4), *kept(**chains, gamma=5)]:
        copy_of(head, tmp_path)
    return Records(tmp_path, 20)


@pytest.mark.full
@HERE
def test_they_fill_no_cell_of_a_table(records: Records) -> None:
    assert len(records.batches) >= 4
    assert (records.chains["batch"] == 1).all() and len(records.chains) > 0
    ids = {run_id.rpartition("-")[2] for run_id in records.batches["run_id"]}
    for name, table in TABLES.items():
        shown = render(table(records), "markdown")
        assert not [one for one in ids if one in shown], name


@HERE
def test_the_figure_draws_each_batch_beside_what_was_expected(records: Records) -> None:
    values = batches(records).points
    assert list(values["batch"]) == sorted({2, 4, 8, 16, *values["batch"]})
    assert ((values["expected"] / values["speedup_measured"] - 1).abs() < 0.07).all()
    assert (values["saturated"] < values["expected"]).all()


def test_a_run_over_other_prompts_is_no_point_of_the_curve(tmp_path: Path) -> None:
    for batch, prompts in ((1, 20), (2, 20), (4, 20), (8, 30)):
        keys = {"batch": batch, "limit": prompts, "accept": {"rule": "exact"}}
        make(tmp_path, prompts=prompts, again=batch, batch=batch, config=keys)
    assert list(batches(Records(tmp_path)).points["batch"]) == [1, 2, 4]
