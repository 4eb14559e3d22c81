"""A sampled run's proof in its record, on the screen, in `results` and in the report; and what it takes away."""

import csv
import io
from pathlib import Path

import pytest
from calls import called, small_run
from made_records import make

from specbench.algorithm.acceptance.base import Verdict
from specbench.algorithm.acceptance.exact import accept_exact
from specbench.analysis.proof.martingales import UNPROVED
from specbench.cli import main
from specbench.records.frame import Records
from specbench.report.page import page

Folders = dict[str, Path]
Capture = pytest.CaptureFixture[str]
SAMPLED = "sampling.temperature=1"


@pytest.fixture
def run(folders: Folders, tmp_path: Path, capfd: Capture):  # type: ignore[no-untyped-def]
    """Run on small random networks; returns (exit code, stdout, stderr, the newest record or None)."""

    def call(*overrides: str):  # type: ignore[no-untyped-def]
        return called(small_run(folders, tmp_path, *overrides), tmp_path, capfd)

    return call


def test_a_sampled_run_proves_its_text(run, tmp_path: Path, capfd: Capture) -> None:  # type: ignore[no-untyped-def]
    code, out, err, record = run(SAMPLED)
    summary = record["summary"]
    assert code == 0 and summary["lossless"], err
    assert summary["proof_tokens"] == sum(len(p["speculative"]["tokens"]) for p in record["prompts"])
    assert abs(summary["proof_z"]) < 4 and 6e-5 < summary["proof_p"] <= 1 and summary["proof_power"] > 0
    assert abs(summary["proof_z2"]) < 4 and abs(summary["proof_z_order"]) < 4 and summary["proof_outside"] == 0
    shown = " ".join(out.split())
    assert f"proof z {summary['proof_z']:+.2f} p=" in shown and "9 times in 10" in shown
    main(["results", "--results", str(tmp_path), "--format", "csv"])
    (row,) = csv.DictReader(io.StringIO(capfd.readouterr().out))
    assert float(row["proof_z"]) == summary["proof_z"] and float(row["proof_power"]) == summary["proof_power"]
    assert main(["report", "--results", str(tmp_path), "--min-prompts", "1"]) == 0
    assert f"z = {summary['proof_z']:+.2f}" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    "keys", [(), (SAMPLED, "accept=typical"), (SAMPLED, "simulate.alpha=0.5")], ids=["T=0", "lossy", "simulated"]
)
def test_other_runs_have_none(run, keys: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    _, out, _, record = run(*keys)
    assert [record["summary"][column] for column in UNPROVED] == [None] * len(UNPROVED)
    assert "proof z" not in out and all("proof" not in prompt for prompt in record["prompts"])


def test_a_run_that_fails_its_proof_has_no_speed(run, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """A rule that forgets the target's top k where something is sampled; at T = 0 it does nothing wrong."""

    def wrong(p_GV, q_GV, drafted, generator):  # type: ignore[no-untyped-def]
        verdict = accept_exact(p_GV, q_GV, drafted, generator)
        unlikely = int(p_GV[verdict.accepted].argmin())
        return verdict if float(p_GV.max()) == 1 else Verdict.chain(verdict.accepted, unlikely)

    monkeypatch.setattr("specbench.experiment.accept.accept_exact", wrong)
    code, out, _, record = run(SAMPLED, "sampling.top_k=2")
    summary = record["summary"]
    assert code == 0 and summary["lossless"] is False and summary["lossy"] is False
    assert summary["speedup_measured"] is None and summary["speedup_end_to_end"] is None
    assert summary["proof_outside"] > 0
    assert "NOT LOSSLESS" in out and "have no probability under the target" in out


def test_a_sampled_record_without_a_proof_says_so(tmp_path: Path, capfd: Capture) -> None:
    """Records from before texts were proved; greedy ones were always compared."""
    make(tmp_path, temperature=0.0)
    assert main(["results", "--results", str(tmp_path)]) == 0
    assert "unproved" not in capfd.readouterr().out
    make(tmp_path, temperature=1.0)
    assert main(["results", "--results", str(tmp_path)]) == 0
    assert capfd.readouterr().out.count("unproved") == 2  # in its row, and what it means
    assert "unproved: two greedy completions compared" in page(Records(tmp_path))
