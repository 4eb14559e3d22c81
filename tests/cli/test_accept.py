"""`accept=` and policies of gamma from argv to the record: what is lossless is proved, what is lossy is marked."""

import json
from functools import partial
from pathlib import Path

import pytest

from specbench.cli import main
from specbench.config.rules import AcceptKeys, rule_of
from specbench.records.frame import Records
from specbench.report.tables import TABLES
from tests.support.calls import Run, refusal

Folders = dict[str, Path]
Capture = pytest.CaptureFixture[str]
SAMPLED = "sampling.temperature=1"


@pytest.fixture
def run(run: Run) -> Run:
    return partial(run, "max_new_tokens=10", "limit=2")


@pytest.mark.full
@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
def test_block_verification_writes_the_targets_own_text(run, kind: str) -> None:  # type: ignore[no-untyped-def]
    code, out, _, record = run("accept=block", kind=kind)
    summary = record["summary"]
    assert code == 0
    assert (summary["accept"], summary["lossless"], summary["lossy"], summary["identical"]) == (
        "block",
        True,
        False,
        1.0,
    )
    assert "block" in out and "LOSSY" not in out


@pytest.mark.full
def test_at_t_1_block_verification_is_proved_greedily_and_lenience_is_not(run, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    proofs = []
    monkeypatch.setattr("specbench.experiment.measure.prove_greedily", lambda *_: proofs.append(1))
    assert run("accept=block", SAMPLED)[0] == 0 and proofs == [1]
    for accept in (["accept=lenient", "accept.lenience=0.3"], ["accept=typical"]):
        code, out, _, record = run(*accept, SAMPLED)
        summary = record["summary"]
        assert code == 0 and proofs == [1]
        assert summary["lossy"] is True and summary["lossless"] is False and summary["identical"] is None
        assert summary["speedup_measured"] is not None and summary["quality_speculative"] is not None
        assert f"{summary['accept']} (lossy)" in out and "LOSSY" in out and "α under the rule" in out
    assert "please report" not in out


@pytest.mark.full
def test_a_lenient_run_at_t_0_keeps_its_speed_and_says_how_many_texts_are_identical(run, tmp_path: Path, capfd) -> None:  # type: ignore[no-untyped-def]
    exact = run()[3]["summary"]
    code, out, _, record = run("accept=lenient", "accept.lenience=1e-12")
    summary = record["summary"]
    assert code == 0 and summary["accept"] == "lenient l=1e-12" and "-lenient-1e-12-" in record["run_id"]
    assert all(prompt["difference"] is None for prompt in record["prompts"])
    same = [p["baseline"].tokens == p["speculative"].tokens for p in record["prompts"]]
    assert summary["identical"] == sum(same) / len(same) < 1
    assert summary["lossy"] and summary["speedup_measured"] is not None
    assert summary["alpha"] == pytest.approx(exact["alpha"]) and summary["alpha_rule"] > summary["alpha"]
    assert summary["tokens_per_pass"] > exact["tokens_per_pass"] and summary["total_variation"] > 0
    assert "completions equal the target's greedy decoding" in out
    main(["results", "--results", str(tmp_path)])
    shown = capfd.readouterr().out
    assert "lenient l=1e-12 (lossy)" in shown and "lossy: the rule changes" in shown
    records = Records(tmp_path)
    assert len(records.paper_runs) == 1 and len(records.beyond) == 1
    row = TABLES["table4"](records).shown.iloc[-1]
    assert row["γ"] == "3, lenient l=1e-12 (lossy)" and row["EMP"].endswith(" lossy")
    main(["results", "--results", str(tmp_path), "--group-by", "accept", "--format", "json"])
    (group,) = json.loads(capfd.readouterr().out)
    assert {row["accept"] for row in group["rows"]} == {"exact", "lenient l=1e-12"}


@pytest.mark.full
def test_typical_at_t_0_is_the_targets_own_text(run) -> None:  # type: ignore[no-untyped-def]
    summary = run("accept=typical")[3]["summary"]
    assert (summary["lossy"], summary["lossless"], summary["identical"]) == (False, True, 1.0)


@pytest.mark.full
def test_lenience_1_and_top_1_are_the_run_of_algorithm_1(run) -> None:  # type: ignore[no-untyped-def]
    plain = run()[3]
    for keys in (["accept=lenient", "accept.lenience=1"], ["accept=top-beta", "accept.beta=1", "accept.tau=0"]):
        _, out, _, record = run(*keys)
        assert record["run_id"] == plain["run_id"] and "already there" in out


@pytest.mark.full
def test_top_beta_is_marked_lossy(run) -> None:  # type: ignore[no-untyped-def]
    code, out, _, record = run("accept=top-beta", "accept.beta=50", "accept.tau=30")
    summary = record["summary"]
    assert code == 0 and summary["accept"] == "top-beta β=50 τ=30" and "-top-beta-50-30-" in record["run_id"]
    assert summary["lossy"] is True and summary["lossless"] is False and summary["identical"] < 1
    assert summary["alpha_rule"] > summary["alpha"] and summary["total_variation"] > 0
    assert summary["speedup_measured"] is not None and summary["quality_speculative"] is not None
    assert "top-beta β=50 τ=30 (lossy)" in out and "LOSSY" in out and "completions equal the target's" in out


@pytest.mark.full
@pytest.mark.parametrize(
    "overrides", [["gamma=heuristic"], ["draft.confidence=0.4"], ["gamma=heuristic", "draft.confidence=0.2"]]
)
@pytest.mark.parametrize("temperature", [0, 1])
def test_policies_that_need_no_probe(run, overrides: list[str], temperature: int) -> None:  # type: ignore[no-untyped-def]
    code, out, _, record = run(*overrides, f"sampling.temperature={temperature}")
    summary = record["summary"]
    assert code == 0 and summary["lossless"] and summary["gamma"] is None
    assert summary["gamma_requested"] in out and summary["speedup_predicted"] is None
    assert summary["identical"] == (1.0 if temperature == 0 else None)
    drafted = {a_pass.drafted for prompt in record["prompts"] for a_pass in prompt["speculative"].passes}
    assert max(drafted) <= 9


@pytest.mark.full
def test_lenience_with_a_probed_gamma(run, short_probes: None) -> None:  # type: ignore[no-untyped-def]
    code, _, _, record = run("accept=lenient", "gamma=auto")
    assert code == 0 and record["summary"]["gamma_requested"] == "auto" and record["summary"]["lossy"]


WRONG = {
    "accept=fair": "accept=fair: no such acceptance rule; choose from block, exact, k-seq, lenient, match, "
    "multi-path, ",
    "accept.rule=fair": "accept.rule=fair: must be exact | block | k-seq | match | multi-path | onehot | traversal | ",
    "accept.lenience=0.3": "accept.lenience=0.3: only accept=lenient has this option; set both, or neither",
    "accept=lenient accept.lenience=0": "accept.lenience=0.0: must be above 0 and at most 1",
    "accept=lenient accept.lenience=1.5": "accept.lenience=1.5: must be above 0 and at most 1",
    "accept=lenient accept.lenience=null": "accept.lenience is not set: accept=lenient requires it",
    "accept=typical accept.epsilon=1": "accept.epsilon=1.0: must be between 0 and 1",
    "accept=typical accept.delta=0": "accept.delta=0.0: must be between 0 and 1",
    "accept=top-beta accept.beta=0": "accept.beta=0: must be at least 1",
    "accept=top-beta accept.tau=-1": "accept.tau=-1.0: must be at least 0",
    "accept=top-beta accept.tau=null": "accept.tau is not set: accept=top-beta requires it",
    "accept.beta=3": "accept.beta=3: only accept=top-beta has this option; set both, or neither",
    f"accept=top-beta {SAMPLED}": "accept=top-beta: compares tokens with the argmax, so not at sampling.temperature=1",
    "accept=top-beta tree=widths": "accept.rule=top-beta: must be exact | k-seq | multi-path | traversal | typical",
    "accept=block simulate.alpha=0.5": "accept=block: not together with simulate.alpha, which accepts by chance",
    "draft.confidence=1.5": "draft.confidence=1.5: must be above 0 and at most 1",
    "draft=bigram draft.confidence=0.4": "draft.confidence=0.4: draft.kind=bigram has no such option; kinds",
    "draft.confidence=0.4 gamma=auto": "gamma=auto: where draft.confidence ends proposals, give a number or heuristic",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_mistake_is_one_line(line: str, capfd: Capture) -> None:
    assert refusal(["run", *line.split()], capfd).startswith(f"specbench: {WRONG[line]}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("recommend draft.confidence=0.4", "draft.confidence=0.4: must be null"),
        ("bench accept=block", "accept.rule=block: must be exact"),
    ],
)
def test_where_a_rule_has_no_meaning_it_is_refused(line: str, message: str, capfd: Capture) -> None:
    assert main(line.split()) == 2
    assert f"specbench: {message}" in capfd.readouterr().err


def test_names() -> None:
    lenient, typical = AcceptKeys("lenient", lenience=0.3), AcceptKeys("typical", epsilon=0.09, delta=0.3)
    assert [rule_of(one).label() for one in (AcceptKeys(), AcceptKeys("block"), lenient, typical)] == [
        "exact", "block", "lenient l=0.3", "typical ε=0.09 δ=0.3",
    ]  # fmt: skip
    assert [rule_of(one).slug() for one in (AcceptKeys(), lenient, typical)] == [
        "",
        "-lenient-0.3",
        "-typical-0.09-0.3",
    ]
    assert rule_of(AcceptKeys("lenient", lenience=1.0)).is_exact and not rule_of(lenient).is_exact
