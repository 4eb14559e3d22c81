"""A sampled run's proof in its record, on the screen, in `results` and in the report; and what it takes away."""

import csv
import io
from pathlib import Path

import pytest

from specbench.algorithm.acceptance.base import Verdict
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.analysis.proof import UNPROVED
from specbench.api import Run, UnprovedWarning
from specbench.cli import main
from specbench.records.frame import Records
from specbench.records.marks import is_unproved, prompts_for_proof
from specbench.report.page import page
from specbench.report.ranking import draw
from specbench.report.remarks import remarks
from specbench.report.summary_text import brief
from specbench.report.tables.speedups import table2
from specbench.report.views import rows as summary_rows
from specbench.stats import Interval
from tests.support.made_records import make

Folders = dict[str, Path]
Capture = pytest.CaptureFixture[str]
SAMPLED = "sampling.temperature=1"


@pytest.mark.full
def test_a_sampled_run_proves_its_text(run, tmp_path: Path, capfd: Capture) -> None:  # type: ignore[no-untyped-def]
    code, out, err, record = run(SAMPLED)
    summary = record["summary"]
    assert code == 0 and summary["lossless"], err
    assert summary["proof_tokens"] == sum(len(p["speculative"].tokens) for p in record["prompts"])
    assert abs(summary["proof_z"]) < 4 and 6e-5 < summary["proof_p"] <= 1 and summary["proof_power"] > 0
    assert abs(summary["proof_z2"]) < 4 and abs(summary["proof_z_order"]) < 4 and summary["proof_outside"] == 0
    shown = " ".join(out.split())
    assert f"z, losslessness {summary['proof_z']:+.2f} p=" in shown and "9 times in 10" in shown
    main(["results", "--results", str(tmp_path), "--format", "csv"])
    (row,) = csv.DictReader(io.StringIO(capfd.readouterr().out))
    assert float(row["proof_z"]) == summary["proof_z"] and float(row["proof_power"]) == summary["proof_power"]
    assert main(["report", "--results", str(tmp_path), "--min-prompts", "1"]) == 0
    assert f"z = {summary['proof_z']:+.2f}" in (tmp_path / "report.html").read_text()


@pytest.mark.full
@pytest.mark.parametrize(
    "keys", [(), (SAMPLED, "accept=typical"), (SAMPLED, "simulate.alpha=0.5")], ids=["T=0", "lossy", "simulated"]
)
def test_other_runs_have_none(run, keys: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    _, out, _, record = run(*keys)
    assert [record["summary"][column] for column in UNPROVED] == [None] * len(UNPROVED)
    assert "z, losslessness" not in out and all("proof" not in prompt for prompt in record["prompts"])


@pytest.mark.full
def test_a_run_that_fails_its_proof_has_no_speed(run, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """A rule that forgets the target's top k where something is sampled; at T = 0 it does nothing wrong."""

    def wrong(p_GV, q_GV, drafted, generator):  # type: ignore[no-untyped-def]
        verdict = accept_exact(p_GV, q_GV, drafted, generator)
        unlikely = int(p_GV[verdict.accepted].argmin())
        return verdict if float(p_GV.max()) == 1 else Verdict.chain(verdict.accepted, unlikely)

    monkeypatch.setattr("specbench.algorithm.acceptance.rules.exact.accept_exact", wrong)
    code, out, _, record = run(SAMPLED, "sampling.top_k=2")
    summary = record["summary"]
    assert code == 0 and summary["lossless"] is False and summary["lossy"] is False
    assert summary["speedup_measured"] is None and summary["speedup_end_to_end"] is None
    assert summary["proof_outside"] > 0
    assert "NOT LOSSLESS" in out and "have no probability under the target" in out


@pytest.mark.full
def test_a_sampled_record_without_a_proof_says_so(tmp_path: Path, capfd: Capture) -> None:
    """Records from before texts were proved; greedy ones were always compared."""
    make(tmp_path, temperature=0.0)
    assert main(["results", "--results", str(tmp_path)]) == 0
    assert "untested" not in capfd.readouterr().out
    make(tmp_path, temperature=1.0)
    assert main(["results", "--results", str(tmp_path)]) == 0
    assert capfd.readouterr().out.count("untested") == 2  # in its row, and what it means
    assert "untested: two greedy completions compared" in page(Records(tmp_path))


# The case of a lossy loop that passed: 8 prompts, and a proof that a fault of .157 a token would have passed.
SMALL = {"proof_tokens": 200, "proof_z": 0.3, "proof_p": 0.76, "proof_power": 0.157, "proof_z_draft": None,
         "proof_z2": None, "proof_z_order": None, "proof_outside": 0}  # fmt: skip
NEEDED = 20  # 8 (.157 / .1)^2


@pytest.mark.full
def test_a_small_run_says_how_many_prompts_would_prove_it(tmp_path: Path, capfd: Capture) -> None:
    run_id = make(tmp_path, temperature=1.0, prompts=8, **SMALL)
    said = f"underpowered: {NEEDED} prompts are needed"
    assert main(["results", "--results", str(tmp_path)]) == 0
    shown = capfd.readouterr().out
    assert "0.30 (underpowered)" in shown and "the tests would have missed a fault of 0.1" in shown
    records = Records(tmp_path)
    made = page(records)
    assert f"z = +0.30, but {said}" in made and f"{run_id[-8:]} (underpowered)" in made
    (row,) = records.paper_runs.to_dict("records")
    assert row["unproved"] and row["too_small"]
    assert [cells["EMP"].endswith(" underpowered") for cells in table2(records).shown.to_dict("records")].count(
        True
    ) == 1
    summary = records.whole(run_id)["summary"]
    assert brief(summary).endswith("(underpowered)")
    assert any(name == "speedup measured" and said in what for name, _, what in summary_rows(summary))
    assert remarks(summary)[0].startswith("NOT PROVED") and f"{NEEDED} prompts" in remarks(summary)[0]
    with pytest.warns(UnprovedWarning, match=said):
        assert Run(tmp_path, records.whole(run_id), False).speedup == summary["speedup_measured"]


def test_a_run_of_some_size_is_proved_and_a_failed_one_needs_no_more_prompts() -> None:
    sampled = {"temperature": 1.0, "lossless": True, "prompts": 8, **SMALL}
    assert prompts_for_proof(sampled) == NEEDED and is_unproved(sampled)
    assert not is_unproved({**sampled, "proof_power": 0.1})
    assert not is_unproved({**sampled, "lossless": False})  # 'not lossless' is known
    assert not is_unproved({**sampled, "proof_power": None})  # nothing was left to chance
    assert not is_unproved({"temperature": 0.0, "lossless": True, "prompts": 8, "proof_power": None})


def test_a_recommendation_says_which_of_its_runs_are_not_proved(capfd: Capture) -> None:
    row = {"estimated": Interval(1.5, 1.4, 1.6), "candidate": "bigram", "gamma": 3, "measured": 1.4,
           "measured_low": 1.3, "measured_high": 1.5, "off": 0.07, "run_id": "a-run", "reused": False,
           "disturbed_by": None, "unproved": "underpowered: 20 prompts are needed"}  # fmt: skip
    draw({"target": "t", "task": "k", "temperature": 1.0, "dtype": "float32", "hardware": "a CPU", "rows": [],
          "reasons": [], "verified": [row], "engine": "eager", "rounds": [], "disturbed_by": None, "alpha_rows": [],
          "texts_reused": 0, "target_step_s": 0.1, "sample_s": 1.0, "score_s": 1.0})  # type: ignore[typeddict-item, typeddict-unknown-key]  # fmt: skip
    assert "a-run: its speedup is underpowered: 20 prompts are needed" in capfd.readouterr().out
