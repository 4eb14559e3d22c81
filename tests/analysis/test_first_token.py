"""Time to first token, prompt tokens per second, and the speedup end to end that theory predicts with both prompts."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.analysis.first_token import Starts, first_token_columns
from specbench.analysis.summary import completed
from specbench.choose.starts import of_starts
from specbench.cli import main
from specbench.records import store
from specbench.records.decoded import Trace
from specbench.report.views import rows
from tests.support.made_passes import made_pass
from tests.support.paths import ROOT

PREDICTED: Any = {"speedup_predicted": 2.0, "speedup_calibrated": 1.6}


def prompt(tokens: int, start_s: float, draft_s: float, **counts: int) -> Any:
    """Ten tokens at 0.1 s alone, and speculatively two passes at 0.2 s, of 4 and 6 tokens."""
    timed = {"draft_s": 0.05, "verify_s": 0.1, "accept_s": 0.05, "accepted": 3}
    mine = {name: counts[name] for name in ("prompt_read", "prompt_copied") if name in counts}
    return {
        "prompt_tokens": tokens,
        "baseline": Trace([5] * 10, start_s, 1.0, steps_s=[0.1] * 10, **mine),
        "speculative": Trace(
            [5] * 10, start_s + draft_s, 0.4, draft_start_s=draft_s,
            passes=[made_pass(**timed, emitted=4), made_pass(**timed, emitted=6)], **counts,
        ),
    }  # fmt: skip


def test_what_a_run_says_of_its_prompts() -> None:
    counts = {"prompt_read": 40, "prompt_copied": 60, "draft_prompt_read": 40, "draft_prompt_copied": 60}
    found = first_token_columns([prompt(101, 0.5, 0.1, **counts), prompt(101, 0.3, 0.1, **counts)], PREDICTED, False)
    assert found["ttft_s_baseline"] == pytest.approx(0.5) and found["ttft_s"] == pytest.approx(0.7)
    assert found["tpot_s_baseline"] == pytest.approx(0.1) and found["tpot_s"] == pytest.approx(0.2 / 6)
    assert found["prompt_tokens"] == 100
    assert (found["prompt_tokens_read"], found["prompt_tokens_copied"]) == (80, 120)
    assert found["prompt_tokens_per_s"] == pytest.approx(100) and found["draft_prompt_tokens_per_s"] == pytest.approx(
        400
    )
    assert found["end_to_end_predicted"] == pytest.approx((0.4 + 1) / (0.4 + 0.1 + 1 / 2.0))
    assert found["end_to_end_calibrated"] == pytest.approx((0.4 + 1) / (0.4 + 0.1 + 1 / 1.6))
    assert first_token_columns([prompt(101, 0.5, 0.1)], PREDICTED, True)["ttft_s"] is None


def test_an_older_record_read_every_token_and_says_nothing_of_the_drafts() -> None:
    found = first_token_columns([prompt(101, 0.5, 0.1)], PREDICTED, False)
    assert found["prompt_tokens_read"] == 100 and found["prompt_tokens_copied"] == 0
    assert "draft_prompt_tokens_read" not in found and "draft_prompt_tokens_per_s" not in found


def test_a_longer_prompt_moves_the_speedup_to_that_of_the_prompts() -> None:
    starts = Starts(target_s=0.1, draft_s=0.05, decode_s=1.0, tokens=100)
    along = [starts.end_to_end(2.0, longer) or 0.0 for longer in (0, 1, 4, 1e9)]
    assert along == sorted(along, reverse=True)
    assert along[0] == 2 and along[-1] == pytest.approx(0.1 / 0.15)


def kept(name: str) -> list[Path]:
    folder = ROOT / "results" / "kept"
    return sorted(folder.glob(name))


def test_kept_records_have_the_times_of_their_prompts() -> None:
    errors = []
    for file in kept("t5-mini-t5-nano-top1000-ende-mini-T0-g*.json.xz"):
        record = store.read(file)
        summary = completed(record)["summary"]
        assert summary["ttft_s"] and summary["prompt_tokens_per_s"] and summary["draft_prompt_tokens_read"]
        shown = {name.strip(): value for name, value, _ in rows(summary)}
        assert "time to first token" in shown and "prefill" in shown and "time per output token" in shown
        if summary["end_to_end_calibrated"] is not None:
            errors.append(summary["end_to_end_calibrated"] / (summary["speedup_end_to_end"] or 1.0) - 1)
    if not errors:
        pytest.skip("needs the kept records")
    assert max(map(abs, errors)) < 0.1


def test_a_summary_without_these_columns_is_shown_without_them() -> None:
    files = kept("t5-mini-t5-nano-top1000-ende-mini-T0-g3*.json.xz")
    if not files:
        pytest.skip("needs the kept records")
    later = ("ttft", "prompt_", "draft_prompt_", "tpot")
    summary: Any = {
        key: value for key, value in store.read(files[0])["summary"].items() if not key.startswith(later)
    }  # fmt: skip
    assert "time to first token" not in {name for name, _, _ in rows(summary)}


def candidate(draft: str, speedup: float) -> Any:
    return SimpleNamespace(draft=draft, gamma=3, tree=None, estimated=SimpleNamespace(value=speedup))


def test_a_ranking_says_what_the_prompts_of_the_task_leave() -> None:
    """A draft with slow prompts may be the fastest decoder, and not the fastest from prompt to end."""
    ranked = [candidate("large", 2.0), candidate("small", 1.8)]
    starts = {"large": Starts(0.1, 0.1, 1.0, 500), "small": Starts(0.1, 0.0, 1.0, 500)}
    (said,) = of_starts(ranked, starts)
    assert said.startswith("prompts of 500 tokens: the target reads one in 100 ms and the draft in 100 ms")
    assert (
        "leaves large with γ=3 1.57× end to end" in said and "the fastest end to end is small with γ=3, 1.68×" in said
    )
    assert of_starts(ranked[1:], {"small": Starts(0.0, 0.0, 1.0, 500)}) == []


def test_recommend_times_the_prompts_of_its_task(folders: dict[str, Path], tmp_path: Path, capfd: Any) -> None:
    words = [f"results={tmp_path}", f"target={folders['llama']}", f"draft={folders['llama-draft']},lookup"]
    words += [f"task.path={folders['rows']}", "task=ende", "dtype=float32", "device=cpu", "engine=eager", "threads=1"]
    words += ["tokens=12", "max_new_tokens=12", "gammas=[1,2]", "rounds=2", "verify=0"]
    assert main(["recommend", *words, "--format", "json"]) == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    assert {row["draft"] for row in rows} == {"llama-draft", "lookup"}
    for row in rows:
        assert row["prompt_tokens"] > 3 and row["target_start_s"] > 0 and row["draft_start_s"] > 0
        if (decoding := row["estimated"]["value"]) > 1:  # the prompt is read at no speedup
            assert row["end_to_end"] < decoding
