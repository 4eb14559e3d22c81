"""What a run says at the end, and the remarks that keep a reader from being misled."""

import io
from pathlib import Path

import pytest

from specbench.cli import main
from specbench.formatting import interval, number, percentage, span
from specbench.records.store import Result
from specbench.report.console import Screen
from specbench.report.remarks import remarks
from specbench.report.summary_text import headline
from tests.support.made_records import make

SUMMARY = {
    "target": "t5-large", "draft": "t5-base", "task": "ende", "temperature": 0.0, "gamma": 5, "prompts": 40,
    "tokens": 900,
    "alpha": 0.6, "alpha_low": 0.55, "alpha_high": 0.65, "accepted_per_drafted": 0.3, "tokens_per_pass": 2.2,
    "tokens_per_pass_predicted": 2.4, "c": 0.1, "verify_cost": 1.1, "overhead": 0.02, "target_step_s": 0.02,
    "speedup_predicted": 1.6, "speedup_calibrated": 1.5, "prediction": "Eq. 1",
    "drafting_per_pass": 0.5, "checking_per_pass": 1.1, "accepting_per_pass": 0.02, "operations": 2.3,
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
        (
            {"identical": 0.9, "dtype": "bfloat16"},
            "differ: two tokens nearly tied, and bfloat16 rounding decided",
        ),
        ({"speedup_measured": 0.8, "drafting_per_pass": 1.6}, "mostly drafting"),
        ({"speedup_measured": 0.8, "drafting_per_pass": 0.0, "checking_per_pass": 2.5}, "mostly verifying"),
        (
            # v is of full passes, and most of a look-up's are not.
            {"speedup_measured": 0.95, "tokens_per_pass": 1.07, "verify_cost": 1.56, "c": 0.0}
            | {"drafting_per_pass": 0.0, "checking_per_pass": 1.12, "accepting_per_pass": 0.0},
            "a pass emits 1.07 tokens and takes 1.12 target steps, mostly verifying",
        ),
        (
            {"verify_cost": 0.85, "verify_cost_low": 0.83, "verify_cost_high": 0.87},
            "a step over one token takes longer",
        ),
        ({"prompts_cut": 7}, "7 of 40 prompts were cut at task.max_source_tokens"),
        ({"prompts": 4}, "only 4 prompts"),
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


def test_the_result_comes_before_the_numbers_behind_it(capfd: pytest.CaptureFixture[str]) -> None:
    sampled = {"identical": None, "proof_z": 0.3, "proof_p": 0.7, "proof_power": 0.02, "proof_z_draft": None}
    sampled |= {"proof_z2": None, "proof_z_order": None, "temperature": 1.0}
    for changes, proof in (({}, "identical"), (sampled, "z, losslessness")):
        record = {"summary": SUMMARY | changes, "config": {}, "environment": {"threads": 2}}
        Screen(io.StringIO()).show(Result(Path("r.json"), record, reused=False))
        head, speedup, whole, proved, *rest = [line.split("  ")[0] for line in capfd.readouterr().out.splitlines()]
        assert head.startswith("t5-large with draft") and (speedup, whole) == ("speedup measured", "")
        assert proved == proof and {"α", "c", "verification cost v"} <= {*rest} and rest[-1].startswith("record: ")


def test_a_contended_speedup_is_marked_where_it_stands(capfd: pytest.CaptureFixture[str]) -> None:
    line = _shown({"disturbed": True, "disturbed_by": "it waited for a core"}, capfd)["speedup measured"]
    assert line.endswith("decoding, within this process: runs=3 covers more; CONTENDED: unreliable")


def test_no_minus_before_a_zero() -> None:
    assert interval(0.2, -0.0004, 0.89) == "0.20 [0.00, 0.89]" and interval(-0.0001, -1, 1, 2, "+").startswith("+0.00")
    assert (span(-0.0001, 0.5, "+.3f", " to "), number(-0.001)) == ("+0.000 to +0.500", "0.00")
    assert percentage(-1e-5, -1e-5, 0.5) == "+0.0% [+0.0, +50.0]"


def _shown(changes: dict[str, object], capfd: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The lines of the table by their first words."""
    record = {"summary": SUMMARY | changes, "config": {}, "environment": {"threads": 2}}
    Screen(io.StringIO()).show(Result(Path("r.json"), record, reused=False))
    return {line.split("  ")[0]: line.rstrip() for line in capfd.readouterr().out.splitlines()}


def test_a_prediction_says_what_it_is_made_from(capfd: pytest.CaptureFixture[str]) -> None:
    lines = _shown({}, capfd)
    assert lines["tokens per pass (τ)"].endswith("Eq. 1 predicts 2.40")
    assert lines["speedup predicted"].endswith("Theorem 3.8")
    assert lines["operations"].endswith("counted; Theorem 3.11: 2.50×") and "2.30×" in lines["operations"]
    lines = _shown({"prediction": "by position"}, capfd)
    assert lines["tokens per pass (τ)"].endswith("from the acceptance by position: 2.40; Eq. 1 with a single α: 2.38")
    assert lines["speedup predicted"].endswith("Theorem 3.8, from the acceptance by position")
    assert lines["speedup calibrated"].endswith("predicted tokens per pass over what these passes cost (in-sample)")


def test_scores_of_two_samples_are_not_held_against_each_other(capfd: pytest.CaptureFixture[str]) -> None:
    sampled = {"temperature": 1.0, "identical": None, "quality_baseline": 24.0, "quality_speculative": 30.3}
    interval = {"quality_difference": 6.3, "quality_difference_low": -1.2, "quality_difference_high": 13.4}
    line = _shown(sampled | interval, capfd)["BLEU"]
    assert "24.0 / 30.3" in line and line.endswith("two samples of one distribution")
    lossy = {"lossless": False, "lossy": True, "accept": "lenient l=0.3"}
    lossy |= {"alpha_rule": 0.7, "alpha_rule_low": 0.6, "alpha_rule_high": 0.8, "total_variation": 0.1}
    assert _shown(sampled | interval | lossy, capfd)["BLEU"].endswith("no difference shown: +6.3 [-1.2, +13.4]")
    better = interval | {"quality_difference_low": 1.2}
    assert _shown(sampled | better | lossy, capfd)["BLEU"].endswith("they differ: +6.3 [+1.2, +13.4]")


def test_a_run_says_what_ran(capfd: pytest.CaptureFixture[str]) -> None:
    ran = {"engine": "static", "batch": 1, "tokens_per_second_baseline": 50.2, "tokens_per_second": 72.9}
    said = headline(SUMMARY | ran, 2)  # type: ignore[typeddict-item]
    assert said.endswith("float32 on cpu (2 threads), engine static, batch 1")
    assert "50 / 73" in _shown(ran, capfd)["tokens per second"]


def test_results_show_the_columns_in_which_rows_differ(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for seed, engine in enumerate(("eager", "eager", "static")):
        make(tmp_path, gamma=3, seed=seed, engine=engine)
    assert main(["results", "--results", str(tmp_path)]) == 0
    first, *rows = capfd.readouterr().out.splitlines()
    assert first.endswith("  engine") and "dtype" not in first
    assert [row.split()[-1] for row in rows[:3]] == ["eager", "eager", "static"]


def test_compare_says_which_engines_ran(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`auto` that became native is the engine of a run that asked for native."""
    asked = [make(tmp_path, gamma=gamma, engine="native", config={"engine": how}) for gamma, how in GIVEN]
    assert main(["compare", *asked, "--results", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert f"A  {asked[0]}  (engine native (auto), float32 on cpu)" in out
    assert f"B  {asked[1]}  (engine native, float32 on cpu)" in out and "differ in engine" not in out


GIVEN = ((3, "auto"), (5, "native"))
