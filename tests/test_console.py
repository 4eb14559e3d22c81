"""What a run says at the end, and the remarks that keep a reader from being misled."""

import io
from pathlib import Path

import pytest

from specbench.cli.console import Screen, remarks
from specbench.run import Result

SUMMARY = {
    "target": "t5-large", "draft": "t5-base", "task": "ende", "temperature": 0.0, "gamma": 5, "prompts": 40,
    "tokens": 900,
    "alpha": 0.6, "alpha_low": 0.55, "alpha_high": 0.65, "accepted_per_drafted": 0.3, "tokens_per_pass": 2.2,
    "tokens_per_pass_predicted": 2.4, "c": 0.1, "verify_cost": 1.1, "overhead": 0.02, "target_step_s": 0.02,
    "speedup_predicted": 1.6, "speedup_calibrated": 1.5, "speedup_explained": 1.45,
    "drafted_per_pass": 5.0, "speedup_measured": 1.45, "speedup_low": 1.4,
    "speedup_high": 1.5, "speedup_end_to_end": 1.3, "speedup_end_to_end_low": 1.2, "speedup_end_to_end_high": 1.4,
    "operations_predicted": 2.5, "quality_metric": "bleu", "quality_baseline": 27.1, "quality_speculative": 27.1,
    "identical": 1.0, "lossless": True, "device": "cpu", "dtype": "float32",
}  # fmt: skip
WITHHELD = dict.fromkeys((key for key in SUMMARY if key.startswith(("speedup_measured", "speedup_end"))), None)


def test_a_clean_run_needs_no_remark() -> None:
    assert remarks(SUMMARY) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lossless": False, "identical": 0.5, **WITHHELD}, "NOT LOSSLESS"),
        ({"identical": 0.9, "dtype": "bfloat16"}, "10.0% of the texts differ after a near tie"),
        ({"speedup_measured": 0.8, "c": 0.3}, "most of it is drafting"),
        ({"speedup_measured": 0.8, "c": 0.01, "verify_cost": 2.5}, "most of it is checking"),
        ({"prompts_cut": 7}, "7 of 40 prompts are the beginning of a text: task.max_source_tokens"),
        ({"prompts": 4}, "4 prompts are few"),
    ],
)
def test_remarks(changes: dict[str, object], said: str) -> None:
    (line,) = remarks(SUMMARY | changes)
    assert said in line


def test_the_table_names_every_number(capfd: pytest.CaptureFixture[str]) -> None:
    record = {"summary": SUMMARY | WITHHELD, "config": {}, "environment": {"threads": 2}}
    Screen(io.StringIO()).show(Result(Path("r.json"), record, reused=False))
    out = capfd.readouterr().out
    for part in (
        "t5-large",
        "0.600 [0.550, 0.650]",
        "Cor 3.6",
        "27.1 / 27.1",
        "100.0%",
        "2 threads",
        "r.json (written)",
    ):
        assert part in out
    (measured,) = [line for line in out.splitlines() if line.startswith("speedup measured")]
    assert "–" in measured


def test_progress_in_a_log_is_a_few_plain_lines() -> None:
    log = io.StringIO()
    with Screen(log) as screen:
        screen.say("loading target t5")
        for done in range(1, 101):
            screen.advance(done, 100)
    lines = log.getvalue().splitlines()
    assert lines[0] == "loading target t5"
    assert lines[-1] == "decoded 100 of 100 prompts"
    assert len(lines) == 6
