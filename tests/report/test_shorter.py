"""Tables for readers hold the paper's rows and some of the others; their values and `--all` hold every row."""

from pathlib import Path

import pytest

from specbench.cli import main
from specbench.config.paths import PACKAGE
from specbench.records.frame import Records
from specbench.report.table import markdown
from specbench.report.tables import build
from tests.support.made_records import make

TABLES = PACKAGE.parent / "results" / "tables"


def test_a_page_has_a_part_of_the_rows_and_says_where_the_others_are(tmp_path: Path) -> None:
    ids = [make(tmp_path, gamma=gamma, prompts=20 + gamma) for gamma in (1, 2, 3, 4)]
    records = Records(tmp_path)
    (short,) = build(["table4"], records, most=2)
    (whole,) = build(["table4"], records, most=None)
    assert len(whole.shown) - len(short.shown) == 2 and short.values.equals(whole.values)
    assert len(whole.values) == len(whole.shown)
    digests = [run_id.rpartition("-")[2] for run_id in ids]
    text = markdown(short)
    assert [one in text for one in digests] == [False, False, True, True]  # those of the most prompts
    assert "2 further rows: `specbench tables table4 --all`, or table4.csv" in text
    assert all(one in markdown(whole) for one in digests) and "further rows" not in markdown(whole)


def test_all_rows_are_printed_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = [make(tmp_path, gamma=3, seed=seed, config={"seed": seed}) for seed in range(22)]
    for words, shown in (([], 20), (["--all"], 22), (["--format=csv"], 22), (["--format=json"], 22)):
        assert main(["tables", "levers", f"--results={tmp_path}", *words]) == 0
        out = capsys.readouterr().out
        assert sum(run_id.rpartition("-")[2] in out for run_id in ids) in (shown, 1), words


@pytest.mark.skipif(not TABLES.is_dir(), reason="needs a checkout, with results/tables")
def test_no_kept_table_is_longer_than_a_page_is_read() -> None:
    sizes = {file.name: file.stat().st_size for file in TABLES.glob("*.md")}
    assert max(sizes.values()) <= 15 * 1024, sizes
