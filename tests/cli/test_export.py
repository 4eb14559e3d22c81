"""A profile is what its schema says, and its numbers are those of its records; other documents raise an error."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specbench.analysis.acceptance.strata import range_of
from specbench.analysis.profile import profile_of_runs, profile_of_scores
from specbench.cli import main
from specbench.errors import UserError
from specbench.recorded import to_json
from specbench.records import store
from specbench.records.documents import write_document
from specbench.records.json_schema import json_schema
from specbench.records.profile_document import PROFILE_VERSION, Profile
from tests.support.kept_records import RESULTS, newest
from tests.support.made_records import alpha_row, make, scored_setting
from tests.support.schema_faults import faults

Capture = pytest.CaptureFixture[str]


def export(capsys: Capture, *words: str) -> Any:
    assert main(["results", *words, "--as", "profile"]) == 0
    profile = json.loads(capsys.readouterr().out)
    schema = json.loads(json.dumps(json_schema(Profile)))
    assert faults(profile, schema, schema["$defs"]) == []
    return profile


def test_ranges_double_and_hold_every_number() -> None:
    for number in range(1, 200):
        first, last = range_of(number, 4)
        assert first <= number <= last
    assert list(dict.fromkeys(range_of(number, 4) for number in range(1, 33))) == [(1, 4), (5, 8), (9, 16), (17, 32)]


def test_a_profile_has_the_numbers_of_its_run(tmp_path: Path, capsys: Capture) -> None:
    run_id = make(tmp_path, gamma=3, temperature=1.0)
    profile = export(capsys, run_id, f"results={tmp_path}")
    (task,), record = profile["tasks"], store.read(store.record_file(tmp_path, run_id))
    summary, prompts = record["summary"], record["prompts"]
    assert profile["profile_version"] == PROFILE_VERSION and task["sources"] == [run_id]
    assert task["alpha"]["value"] == pytest.approx(summary["alpha"]) and task["alpha"]["tokens"] == summary["tokens"]
    for one, counted in zip(task["by_position"], summary["acceptance_by_position"], strict=True):
        assert one["position"] == counted["position"] and one["tokens"] == counted["reached"]
        assert one["value"] == pytest.approx(counted["accepted"] / counted["reached"])
        assert one["low"] <= one["value"] <= one["high"] and one["prompts"] <= len(prompts)
    early = [beta for prompt in prompts for beta in prompt["beta"][:4]]
    assert task["by_place"][0]["value"] == pytest.approx(np.mean(early))
    for key in ("by_place", "by_context"):  # ranges divide the tokens
        assert sum(one["tokens"] for one in task[key]) == summary["tokens"]
        mean = sum(one["value"] * one["tokens"] for one in task[key]) / summary["tokens"]
        assert mean == pytest.approx(summary["alpha"])


def test_a_profile_round_trips_through_a_file(tmp_path: Path, capsys: Capture) -> None:
    run_id = make(tmp_path)
    printed = export(capsys, run_id, f"results={tmp_path}")
    file = tmp_path / "profile.json"
    assert main(["results", run_id, f"results={tmp_path}", "--as", "profile", "--output", str(file)]) == 0
    assert json.loads(file.read_text(encoding="utf-8")) == printed
    assert json.loads(json.dumps(printed)) == printed


def test_runs_at_several_gammas_give_a_schedule(tmp_path: Path, capsys: Capture) -> None:
    """A draft that costs much: the more it drafts the slower, in every range of contexts."""
    ids = [make(tmp_path, gamma=gamma, c=0.6, alpha=0.5) for gamma in (1, 3, 7)]
    (task,) = export(capsys, *ids, f"results={tmp_path}")["tasks"]
    assert task["sources"] == ids and len(task["gamma_by_context"]) >= 2
    for one in task["gamma_by_context"]:
        assert one["batch"] == 1 and [row["gamma"] for row in one["gammas"]] == sorted(
            row["gamma"] for row in one["gammas"]
        )
        assert one["best"] == max(one["gammas"], key=lambda row: row["speedup"]["value"])["gamma"]
    assert task["gamma_by_context"][1]["best"] == 1
    assert len(task["by_position"]) == 7


def test_a_batch_has_its_own_schedule_and_each_row_its_share(tmp_path: Path, capsys: Capture) -> None:
    """A pass that all rows wait for is timed once for each of them: at 4 rows a quarter of it is the row's."""
    alone, other = make(tmp_path, gamma=3), make(tmp_path, gamma=5)
    file = store.record_file(tmp_path, other)
    record = store.read(file)
    record["summary"]["batch"] = 4
    for prompt in record["prompts"]:
        prompt["baseline"].rows = [4] * len(prompt["baseline"].steps_s)
        prompt["speculative"].rows = [2] * len(prompt["speculative"].passes)
    (task,) = export(capsys, other, f"results={tmp_path}")["tasks"]
    store.write(tmp_path, record)
    (batched,) = export(capsys, other, f"results={tmp_path}")["tasks"]
    assert {one["batch"] for one in batched["gamma_by_context"]} == {4}
    for was, now in zip(task["gamma_by_context"], batched["gamma_by_context"], strict=True):
        assert now["gammas"][0]["speedup"]["value"] == pytest.approx(was["gammas"][0]["speedup"]["value"] / 2)
    (both,) = export(capsys, alone, other, f"results={tmp_path}")["tasks"]
    assert [one["batch"] for one in both["gamma_by_context"]] == sorted(
        one["batch"] for one in both["gamma_by_context"]
    )
    assert {row["gamma"] for one in both["gamma_by_context"] if one["batch"] == 1 for row in one["gammas"]} == {3}


def test_runs_on_several_tasks_are_parts_of_one_profile(tmp_path: Path, capsys: Capture) -> None:
    ids = [make(tmp_path, task=task) for task in ("ende-mini", "sum-mini")]
    profile = export(capsys, *ids, f"results={tmp_path}")
    assert [task["task"] for task in profile["tasks"]] == ["ende-mini", "sum-mini"]


@pytest.mark.parametrize(
    "columns",
    [
        {"draft": "lookup", "task": "sum-mini", "temperature": 0, "gamma": 3},
        {"draft": "t5-nano", "temperature": 1, "gamma": 3, "accept": "lenient l=0.1"},
        {"draft": "t5-nano", "temperature": 0, "gamma_requested": "adaptive"},
    ],
    ids=["other task", "lenient", "adaptive"],
)
def test_kept_records_have_profiles(columns: dict[str, Any], capsys: Capture) -> None:
    (task,) = export(capsys, newest(**columns).run_id, f"results={RESULTS}")["tasks"]
    assert task["by_position"] and task["by_context"]
    assert bool(task["gamma_by_context"]) != bool(task["missing"])


def test_a_document_of_alpha_gives_the_profile_of_one_draft(tmp_path: Path, capsys: Capture) -> None:
    share = {"value": 0.5, "low": 0.4, "high": 0.6}
    row = alpha_row(draft="heads", acceptance_by_rank={"fixed": [share, share]})
    texts = [{"beta": [1.0, 0.0, 0.5], "ahead": [{"beta": [0.0, 1.0, 0.0]}]}, {"beta": [1.0] * 3, "ahead": []}]
    document = {
        "alpha_id": "t5-mini-ende-mini-1", "rows": [row, row | {"draft": "bigram"}],
        "settings": [scored_setting(drafts={"heads": texts, "bigram": texts})],
    }  # fmt: skip
    write_document(tmp_path / "alpha" / "t5-mini-ende-mini-1.json", document)
    (task,) = export(capsys, "t5-mini-ende-mini-1", "--draft", "heads", f"results={tmp_path}")["tasks"]
    assert task["alpha"]["value"] == pytest.approx(0.75) and task["alpha"]["tokens"] == 6
    assert [one["value"] for one in task["by_position"]] == pytest.approx([0.75, 1 / 3])
    assert [one["rank"] for one in task["by_rank"]] == [1, 2] and task["by_rank"][0]["children"] == "fixed"
    assert task["by_context"] == [] and task["missing"]
    assert main(["results", "t5-mini-ende-mini-1", "--as", "profile", f"results={tmp_path}"]) == 2
    assert "holds heads at T=0, bigram at T=0; name one with --draft" in capsys.readouterr().err


def test_what_is_no_profile_is_refused(tmp_path: Path, capsys: Capture) -> None:
    a, b = make(tmp_path), make(tmp_path, temperature=1.0)
    assert main(["results", a, b, "--as", "profile", f"results={tmp_path}"]) == 2
    assert "the runs of a profile differ only in task or gamma" in capsys.readouterr().err
    record = store.read(store.record_file(tmp_path, a))
    other = {**record, "summary": {**record["summary"], "processing": "repetition_penalty=1.2"}}
    with pytest.raises(UserError, match="has processing repetition_penalty=1.2"):
        profile_of_runs([record, other])  # type: ignore[list-item]
    assert main(["results", a, "--as", "table", f"results={tmp_path}"]) == 2
    assert "profile" in capsys.readouterr().err
    assert main(["results", a, "--as", "profile", "--draft", "bigram", f"results={tmp_path}"]) == 2
    assert "--draft, --temperature: choose from a document of specbench alpha" in capsys.readouterr().err


def test_the_schema_is_printed(capsys: Capture) -> None:
    assert main(["results", "--schema", "profile"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$defs"]["Profile"]["properties"]["profile_version"] == {"enum": [PROFILE_VERSION]}


def bounds(value: Any) -> Any:
    """All intervals of a profile, without what counts prompts and tokens."""
    if isinstance(value, list):
        return [bounds(one) for one in value]
    if isinstance(value, dict):
        return {name: bounds(one) for name, one in value.items() if name not in ("prompts", "tokens")}
    return pytest.approx(value) if isinstance(value, float) else value


def test_equal_prompts_are_named_and_count_once(tmp_path: Path) -> None:
    record = store.read(store.record_file(tmp_path, make(tmp_path, gamma=3, temperature=1.0)))
    prompts = [prompt | {"prompt": f"{number}"} for number, prompt in enumerate(record["prompts"])]
    once, thrice = (profile_of_runs([record | {"prompts": prompts * times}])["tasks"][0] for times in (1, 3))
    for key in ("alpha", "by_position", "by_rank", "by_place", "by_context", "gamma_by_context"):
        assert bounds(to_json(thrice[key])) == bounds(to_json(once[key])), key
    said = f"EQUAL PROMPTS: {3 * len(prompts)} prompts, {len(prompts)} of them different"
    assert [said in line for line in thrice["missing"]].count(True) == 1 and not any(said in m for m in once["missing"])


def test_equal_prompts_of_a_document_of_alpha_count_once() -> None:
    row = alpha_row(draft="heads", prompts=4, distinct_prompts=2, prompt_groups=[0, 0, 1, 1])
    texts = [{"beta": [1.0, 0.0, 0.5]}] * 2 + [{"beta": [0.25] * 3}] * 2
    (task,) = profile_of_scores("one", row, texts)["tasks"]
    (once,) = profile_of_scores("one", alpha_row(draft="heads", prompts=2), [texts[0], texts[2]])["tasks"]
    assert bounds(task["alpha"]) == bounds(once["alpha"]) and bounds(task["by_place"]) == bounds(once["by_place"])
    assert any("EQUAL PROMPTS: 4 prompts, 2 of them different" in line for line in task["missing"])
