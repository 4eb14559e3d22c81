"""Records are of their schema, those of older versions come to it, and others can read it."""

import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import pytest

from specbench.border import Unreadable
from specbench.cli import main
from specbench.config.paths import PACKAGE
from specbench.records import store
from specbench.records.catalog import Catalog
from specbench.records.documents import DOCUMENTS, read_document, write_document
from specbench.records.keeping import compact
from specbench.records.run_record import SCHEMA_VERSION
from specbench.records.store import of_this_version
from tests.support.made_records import make
from tests.support.schema_faults import faults_of

KEPT = PACKAGE.parent / "results" / "kept"


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["results", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$defs"]["RunRecord"]["properties"]["schema_version"] == {"enum": [SCHEMA_VERSION]}
    assert schema["$defs"]["Pass"]["properties"]["verify_s"] == {"type": "number", "description": "seconds"}
    assert "tokens" in schema["$defs"]["Pass"]["required"]


def test_a_fault_is_seen(tmp_path: Path) -> None:
    record: Any = store.read(store.record_file(tmp_path, make(tmp_path)))
    assert faults_of(record) == []
    record["prompts"][0]["speculative"].passes[0].drafted = "three"
    record["summary"]["novel"] = 1
    del record["summary"]["alpha"]
    assert faults_of(record) == [
        ".summary.alpha: missing", ".summary.novel: not in the schema",
        ".prompts[0].speculative.passes[0].drafted: 'three' is no integer",
    ]  # fmt: skip


@pytest.mark.skipif(not KEPT.is_dir(), reason="needs a checkout, with results/kept")
def test_kept_records_are_of_their_schema() -> None:
    files = sorted(KEPT.glob("*.json.xz"))
    few = files[:: max(1, len(files) // 12)]
    few += [file for file in files if "lenient" in file.name][:2]
    for file in few:
        record = store.read(file)
        assert faults_of(record) == [], file.name
        assert store.read_head(file).summary == record["summary"]
        if record["summary"]["lossy"]:
            assert record["summary"]["total_variation"] > 0 and "rule" in record["prompts"][0]


@pytest.mark.skipif(not KEPT.is_dir(), reason="needs a checkout, with results/kept")
@pytest.mark.parametrize("tenth", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 10))])
def test_kept_records_are_the_same_bytes_once_read_and_written(tenth: int) -> None:
    """Nothing of a record is lost, renamed or moved by the classes that it becomes in memory."""
    files = sorted(KEPT.glob("*.json.xz"))[tenth::10]
    for file in files[::4] if tenth == 0 else files:
        assert lzma.decompress(compact(store.read(file)).content) == lzma.decompress(file.read_bytes()), file.name


@pytest.mark.parametrize("version", [None, 1, "2", True])
def test_a_record_of_another_version_is_unreadable(version: object) -> None:
    with pytest.raises(Unreadable, match="schema version"):
        of_this_version({"run_id": "r", "schema_version": version})


def test_a_record_of_a_newer_version_is_named_and_skipped(tmp_path: Path) -> None:
    run_id = make(tmp_path)
    kept = tmp_path / "kept" / f"{run_id}.json.xz"
    kept.parent.mkdir()
    text = store.record_file(tmp_path, run_id).read_bytes().replace(b'"schema_version": 2', b'"schema_version": 3')
    kept.write_bytes(lzma.compress(text))
    shutil.rmtree(store.runs_folder(tmp_path))
    with pytest.warns(UserWarning, match=r"skipped, .*schema version 3, and this specbench reads 2; update it"):
        assert Catalog(tmp_path).rows() == []


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_other_records_have_schemas_too(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["results", "--schema", kind]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert {"schema_version", "environment"} <= set(schema["$defs"][DOCUMENTS[kind].__name__]["required"])


def test_a_number_that_is_not_finite_is_null(tmp_path: Path) -> None:
    file = write_document(tmp_path / "alpha" / "a.json", {"rows": [{"alpha": float("nan"), "tokens": 3}]})
    assert file.read_text() == '{"schema_version": 2, "rows": [{"alpha": null, "tokens": 3}]}\n'
    assert read_document(file)["rows"] == [{"alpha": None, "tokens": 3}]
