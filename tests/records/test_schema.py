"""Records are of their schema, those of older versions come to it, and others can read it."""

import gzip
import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from made_records import make

from specbench.algorithm.decoding import Pass, Trace
from specbench.analysis.costs.costs import Cost
from specbench.analysis.forecast.predict import Prediction
from specbench.analysis.proof.departures import Difference
from specbench.analysis.proof.evidence import Evidence, Sums
from specbench.bench.beams import BeamRow
from specbench.bench.bench import Row
from specbench.cli import main
from specbench.config.paths import PACKAGE
from specbench.records import store
from specbench.records.catalog import Catalog
from specbench.records.decoded import PassRecord, TraceRecord
from specbench.records.documents import DOCUMENTS, read_document, write_document
from specbench.records.json_schema import json_schema
from specbench.records.prediction import CostRecord, PredictionRow
from specbench.records.prompt_sums import DifferenceRecord, EvidenceRecord, SumsRecord
from specbench.records.schema import SCHEMA_VERSION, RunRecord
from specbench.records.store import migrated
from specbench.records.timed_documents import BeamRecord, BenchRecord
from specbench.stats import Interval, IntervalRecord

KEPT = PACKAGE.parent / "results" / "kept"
KINDS = {"integer": int, "number": (int, float), "string": str, "boolean": bool, "null": type(None)}


def faults(value: Any, schema: dict[str, Any], definitions: dict[str, Any], at: str = "") -> list[str]:
    """What of `value` is not as the JSON Schema has it; keys that it does not name count too."""
    if "$ref" in schema:
        return faults(value, definitions[schema["$ref"].rpartition("/")[2]], definitions, at)
    if "anyOf" in schema:
        tried = [faults(value, one, definitions, at) for one in schema["anyOf"]]
        return [] if [] in tried else min(tried, key=len)
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{at}: {value!r} is none of {schema['enum']}"]
    if schema.get("type") in ("object", "array") and not isinstance(value, dict | list):
        return [f"{at}: {value!r} is no {schema['type']}"]
    if "properties" in schema:
        known = schema["properties"]
        found = [f"{at}.{key}: missing" for key in schema["required"] if key not in value]
        found += [f"{at}.{key}: not in the schema" for key in value if key not in known]
        return found + [
            fault
            for key in value
            if key in known
            for fault in faults(value[key], known[key], definitions, f"{at}.{key}")
        ]
    if schema.get("type") == "array":
        return [
            fault for i, one in enumerate(value) for fault in faults(one, schema["items"], definitions, f"{at}[{i}]")
        ]
    if schema.get("type") == "object":
        inner = schema["additionalProperties"]
        return [fault for key in value for fault in faults(value[key], inner, definitions, f"{at}.{key}")]
    kind = schema.get("type")
    right = kind is None or (isinstance(value, KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool)))
    return [] if right else [f"{at}: {value!r} is no {kind}"]


def faults_of(record: Any) -> list[str]:
    schema = json.loads(json.dumps(json_schema(RunRecord)))
    return faults(record, schema, schema["$defs"])


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["results", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$defs"]["RunRecord"]["properties"]["schema_version"] == {"enum": [SCHEMA_VERSION]}
    assert schema["$defs"]["PassRecord"]["properties"]["verify_s"] == {"type": "number", "description": "seconds"}
    assert "tokens" in schema["$defs"]["PassRecord"]["required"]


def test_a_fault_is_seen(tmp_path: Path) -> None:
    record: Any = store.read(store.record_file(tmp_path, make(tmp_path)))
    assert faults_of(record) == []
    record["prompts"][0]["speculative"]["passes"][0]["drafted"] = "three"
    record["summary"]["novel"] = 1
    del record["summary"]["alpha"]
    assert faults_of(record) == [
        ".summary.alpha: missing", ".summary.novel: not in the schema",
        ".prompts[0].speculative.passes[0].drafted: 'three' is no integer",
    ]  # fmt: skip


def test_traces_have_the_fields_of_their_records() -> None:
    assert {field.name for field in fields(Pass)} == set(get_type_hints(PassRecord))
    assert {"text", *(field.name for field in fields(Trace))} == set(get_type_hints(TraceRecord))


@pytest.mark.skipif(not KEPT.is_dir(), reason="needs a checkout, with results/kept")
def test_kept_records_of_every_version_come_to_this_schema() -> None:
    files = sorted(KEPT.glob("*.json.gz"))
    few = files[:: max(1, len(files) // 12)]
    few += [file for file in files if "lenient" in file.name][:2]
    for file in few:
        record = store.read(file)
        assert faults_of(record) == [], file.name
        assert store.read_head(file).summary == record["summary"]
        if record["summary"]["lossy"]:
            assert record["summary"]["total_variation"] > 0 and "rule" in record["prompts"][0]


def test_version_1_is_migrated() -> None:
    old = {
        "schema": 1, "run_id": "r", "units": {}, "config": {"task": {"name": "ende", "path": "a/rows.jsonl"}},
        "summary": {"task": "ende", "strayed": 0.1, "speedup_explained": 2.0, "lenience": [{"strayed": 0.2}]},
        "prompts": [{"strayed": {"0.5": 1.0}, "rule": {"kept": 3.0, "strayed": 0.5}}, {"beta": []}],
    }  # fmt: skip
    assert migrated(old) == {
        "schema_version": 2, "run_id": "r", "config": old["config"],
        "summary": {"task": "ende (rows.jsonl)", "total_variation": 0.1, "lenience": [{"total_variation": 0.2}]},
        "prompts": [
            {"total_variation": {"0.5": 1.0}, "rule": {"accept_probability": 3.0, "total_variation": 0.5}},
            {"beta": []},
        ],
    }  # fmt: skip
    assert migrated(migrated(old)) == migrated(old)


def test_a_record_of_a_newer_version_is_named_and_skipped(tmp_path: Path) -> None:
    run_id = make(tmp_path)
    kept = tmp_path / "kept" / f"{run_id}.json.gz"
    kept.parent.mkdir()
    text = store.record_file(tmp_path, run_id).read_bytes().replace(b'"schema_version": 2', b'"schema_version": 3')
    kept.write_bytes(gzip.compress(text))
    shutil.rmtree(store.runs_folder(tmp_path))
    with pytest.warns(UserWarning, match=r"skipped, .*schema version 3, and this specbench reads versions up to 2"):
        assert Catalog(tmp_path).rows() == []


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_other_records_have_schemas_too(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["results", "--schema", kind]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert {"schema_version", "environment"} <= set(schema["$defs"][DOCUMENTS[kind].__name__]["required"])


def test_dataclasses_have_the_fields_of_their_records() -> None:
    pairs = {
        Prediction: PredictionRow, Cost: CostRecord, Interval: IntervalRecord, Row: BenchRecord, BeamRow: BeamRecord,
        Evidence: EvidenceRecord, Sums: SumsRecord, Difference: DifferenceRecord,
    }  # fmt: skip
    for dataclass, record in pairs.items():
        names = {field.name for field in fields(dataclass)} | ({"is_rounding"} if dataclass is Difference else set())
        assert names == set(get_type_hints(record)), record


def test_a_number_that_is_not_finite_is_null(tmp_path: Path) -> None:
    file = write_document(tmp_path / "alpha" / "a.json", {"rows": [{"alpha": float("nan"), "tokens": 3}]})
    assert file.read_text() == '{"schema_version": 2, "rows": [{"alpha": null, "tokens": 3}]}\n'
    assert read_document(file)["rows"] == [{"alpha": None, "tokens": 3}]
