"""The kept records anew: measured in several processes, with the pages that name them, or their summaries alone."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from specbench.config.schema import RunConfig
from specbench.experiment import processes
from specbench.loading.model_loader import SharedModels
from specbench.records import store
from specbench.records.catalog import digest
from specbench.records.frame import Records
from specbench.records.keeping import compact, keep, write_copy
from specbench.records.numbers import Summary
from tests.support.composed import compose
from tests.support.made_records import make
from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import measure_again
import overlap
import summaries_again


def test_pages_name_the_new_record() -> None:
    page = "<!--default: α-->0.83<!----> <!-- from: specbench explain 0123abcd -->, 0123abcd <!--aaaabbbb: c-->"
    new = measure_again.renamed(page, [("t5-mini-x-0123abcd", "t5-mini-x-89abcdef"), ("y-aaaabbbb", "y-ccccdddd")])
    assert new == page.replace("explain 0123abcd", "explain 89abcdef").replace("aaaabbbb", "ccccdddd")


def test_runs_that_stop_by_themselves_stay_as_they_were() -> None:
    assert measure_again.in_processes(RunConfig(), 3).runs == 3
    assert measure_again.in_processes(RunConfig(), None).runs == 1
    assert measure_again.in_processes(RunConfig(until="2%"), 3).runs == 1


def test_each_kept_config_is_measured_in_three_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results"
    run_id, asked, started = make(results), list[RunConfig](), list[list[str]]()
    kept = results / "kept"
    kept.mkdir()
    (kept / f"{run_id}.json.xz").touch()
    page = tmp_path / "README.md"
    page.write_text(f"<!--{digest(run_id)}: speedup-->2.0<!---->")
    monkeypatch.setattr(measure_again, "ROOT", tmp_path)
    monkeypatch.setattr(measure_again, "config_of_record", lambda config: RunConfig())
    monkeypatch.setattr(measure_again.subprocess, "run", started.append)

    def decode(config: RunConfig, *_: object) -> SimpleNamespace:
        asked.append(config)
        return SimpleNamespace(record={"run_id": "t5-mini-other-01234567"})

    monkeypatch.setattr(measure_again.api, "decode", decode)
    assert measure_again.main(["--runs", "3", str(results)]) == 0
    assert [command[-2:] for command in started] == [["--process", str(number)] for number in range(3)]
    assert [(one.runs, one.results) for one in asked] == [(3, str(results))]
    assert page.read_text() == "<!--01234567: speedup-->2.0<!---->"
    assert measure_again.main(["--target", "gpt-mini", str(results)]) == 0 and len(asked) == 1
    assert measure_again.main(["--drafts", "eagle,hydra", str(results)]) == 0 and len(asked) == 1
    assert measure_again.main(["--drafts", "model", str(results)]) == 0 and len(asked) == 2


def test_shares_of_processes_become_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no other process starts for it; shares that are there are not measured again."""
    words = ("draft=bigram", "limit=2", "max_new_tokens=8", "gamma=3", "runs=2", "dtype=float32")
    config, _ = compose("processes", "target=t5-mini", *words, f"results={tmp_path}")
    models = SharedModels()
    measure_again.measure_part(config, 1, models)  # the first process failed here: the other configs are measured
    measure_again.measure_part(replace(config, runs=1), 0, models)
    assert not (tmp_path / "journals").exists()
    for number in (0, 0, 1, 2):
        measure_again.measure_part(config, number, models)
    models.close()
    monkeypatch.setattr(processes.subprocess, "Popen", None)
    found = measure_again.api.decode(config)
    assert found is not None and found.record["summary"]["processes"] == 2
    measure_again.measure_part(config, 1, models)  # the record is there: nothing is left to measure
    assert not list((tmp_path / "journals").glob("*/"))


def test_two_intervals_overlap_if_neither_ends_before_the_other() -> None:
    def of(low: float, high: float) -> Summary:
        return cast(Summary, {"speedup_measured": 1.0, "speedup_low": low, "speedup_high": high, "disturbed": low > 1})

    first, touching, apart = of(0.9, 1.0), of(1.0, 1.1), of(1.01, 1.1)
    assert overlap.overlap(first, touching) and overlap.overlap(touching, first) and not overlap.overlap(first, apart)
    assert overlap.row("x", [first, touching, apart]) == {
        "pair": "x", "pairs": 3, "overlapping": 2, "contended": 1, "apart": 0.0, "furthest": 0.0,
    }  # fmt: skip


def test_tables_show_the_record_of_several_processes(tmp_path: Path) -> None:
    """Of one config: neither a newer single process nor an older one stands beside it, and it replaces both copies."""
    single = make(tmp_path, created="2026-03-02T03:04:05+00:00")
    several = make(tmp_path, again=1, config={"runs": 3}, created="2026-02-02T03:04:05+00:00")
    records = Records(tmp_path)
    assert list(records.paper_runs["run_id"]) == [several] and records.replaced(several) == [single]


def test_prompts_that_no_copy_names_any_more_are_removed(tmp_path: Path) -> None:
    single = make(tmp_path, created="2026-03-02T03:04:05+00:00")
    (tmp_path / "kept").mkdir()
    write_copy(tmp_path / "kept" / f"{single}.json.xz", compact(store.read(store.record_file(tmp_path, single))))  # type: ignore[arg-type]
    (before,) = (tmp_path / "kept" / "prompts").iterdir()
    several = make(tmp_path, again=1, config={"runs": 3}, created="2026-02-02T03:04:05+00:00")
    record = store.read(store.record_file(tmp_path, several))
    record["prompts"][0]["prompt"] = "another prompt"
    store.write(str(tmp_path), record)
    said = list[str]()
    keep(Records(tmp_path), said.append, dirty=True)
    assert [file.name for file in (tmp_path / "kept").glob("*.xz")] == [f"{several}.json.xz"], said
    left = list((tmp_path / "kept" / "prompts").iterdir())
    assert len(left) == 1 and left != [before]


def test_a_kept_summary_is_made_anew_from_its_prompts(tmp_path: Path) -> None:
    run_id = make(tmp_path, c=0.3)
    record = store.read(store.record_file(tmp_path, run_id))
    (tmp_path / "kept").mkdir()
    file = tmp_path / "kept" / f"{run_id}.json.xz"
    older = {**record, "summary": {**record["summary"], "verify_cost": 9.0, "c_low": None}}
    write_copy(file, compact(older))  # type: ignore[arg-type]
    assert summaries_again.main(str(tmp_path)) == 1 and summaries_again.main(str(tmp_path)) == 0
    found = store.read(file)
    assert found["summary"]["verify_cost"] == pytest.approx(record["summary"]["verify_cost"], rel=1e-3)
    assert found["summary"]["c_low"] is not None and len(found["prompts"]) == len(record["prompts"])
