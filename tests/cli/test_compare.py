"""`specbench compare`: which two records are compared."""

from pathlib import Path

import pytest

from specbench.cli import main
from specbench.records import store
from tests.support.calls import refusal
from tests.support.made_records import make, record

Capture = pytest.CaptureFixture[str]


def test_a_record_is_not_compared_with_itself(tmp_path: Path, capfd: Capture) -> None:
    run_id = make(tmp_path)
    said = refusal(["compare", "last", run_id[-8:], "--results", str(tmp_path)], capfd)
    assert f"compare: last and {run_id[-8:]} are one record, {run_id}" in said


def test_two_files_of_one_id_are_two_records(tmp_path: Path, capfd: Capture) -> None:
    """The same run on two days: the second file must not be compared with itself."""
    files = []
    for day in ("before", "after"):
        made = record(c=0.2 if day == "before" else 0.4) | {"run_id": "one"}
        store.write(tmp_path / day, made)
        files.append(str(store.record_file(tmp_path / day, "one")))
    assert main(["compare", *files, "--results", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert f"A  {files[0]} " in out and f"B  {files[1]} " in out
    assert (
        not next(line for line in out.splitlines() if line.startswith("speedup A / B")).split()[4].startswith("1.000")
    )
