"""Records: written whole or not at all, read back in one line each, damaged ones skipped by name."""

import json
import os
import time
from pathlib import Path

import pytest

from specbench.cli import main
from specbench.errors import MachineError
from specbench.recorded import to_json
from specbench.records import store
from specbench.records.catalog import Catalog
from specbench.records.run_record import SCHEMA_VERSION
from tests.support.made_records import record

RECORD = record(prompts=2) | {"run_id": "a-b-T0", "config": {}}
RECORD["summary"] |= {"target": "a", "alpha": 0.5, "name": "größer"}
RECORD["prompts"][0]["prompt"] = "x\ny"


def test_a_record_is_plain_json_with_its_summary_on_the_first_line(tmp_path: Path) -> None:
    file = store.write(tmp_path, RECORD)
    assert json.loads(file.read_text()) == {"schema_version": SCHEMA_VERSION, **to_json(RECORD), "complete": True}
    assert store.read_head(file).row == {"run_id": "a-b-T0", **RECORD["summary"]}
    assert Catalog(tmp_path).rows() == [store.read_head(file).row]
    assert [path.name for path in file.parent.iterdir()] == ["a-b-T0.json"]


def test_a_failed_write_leaves_the_old_record_and_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = store.write(tmp_path, RECORD)
    before = file.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MachineError, match=r"a-b-T0\.json: cannot be written \(No space left on device\)"):
        store.write(tmp_path, RECORD | {"summary": {}})
    assert file.read_bytes() == before
    assert len(list(file.parent.iterdir())) == 1


def test_damaged_records_are_skipped_by_name(tmp_path: Path) -> None:
    good = store.write(tmp_path, RECORD)
    (good.parent / "cut.json").write_bytes(good.read_bytes()[:-5])
    (good.parent / "empty.json").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"(cut|empty)\.json: skipped") as caught:
        assert len(Catalog(tmp_path).rows()) == 1
    assert len(caught) == 2


def test_no_folder_is_no_record(tmp_path: Path) -> None:
    assert Catalog(tmp_path / "nowhere").rows() == []


@pytest.mark.full
def test_ten_thousand_records_are_read_and_shown_quickly(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = store.runs_folder(tmp_path)
    folder.mkdir(parents=True)
    summary = RECORD["summary"] | {"target": "t5-large"} | {f"more_{number}": number / 7 for number in range(30)}
    for number in range(10_000):
        head = json.dumps({"schema_version": 2, "run_id": f"run-{number}", "summary": summary, "config": {}})[:-1]
        (folder / f"{number}.json").write_text(f'{head},\n"prompts": [],\n"complete": true\n}}\n')
    began = time.process_time()
    assert main(["results", "--results", str(tmp_path)]) == 0
    assert time.process_time() - began < 5
    assert capfd.readouterr().out.count("t5-large") == 10_000
