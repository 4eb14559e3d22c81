"""Factors multiply to the measured speedup, on every kept record and on made ones; a planted cause comes first."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specbench import theory
from specbench.analysis.explain import Waterfall, needs, speedup_with_longer_prompts, waterfall
from specbench.analysis.explain.loop import loop_share
from specbench.analysis.forecast import expected_by_position, passes_to_come, walk
from specbench.analysis.summary import explained
from specbench.cli import main
from specbench.recorded import to_json
from specbench.records import store
from specbench.records.catalog import digest
from specbench.records.decoded import Pass, Trace
from specbench.records.store import Head, Result
from specbench.report.console import Screen
from specbench.report.explanation import largest, needed, of_loop, sentences
from tests.support.kept_records import CHAIN, RESULTS, kept, newest
from tests.support.made_records import make
from tests.support.schema_faults import faults_of

KEPT = [head for head in kept(batch=1, served=None) if head.summary["speedup_measured"] is not None]
STEP_S = 0.002


def planted(
    *, lengths: Sequence[int] = (200,) * 6, gamma: int = 4, beta: Sequence[float] = (1.0,),
    c: float = 0.0, v: float = 1.0, accept: float = 0.0, other: float = 0.0, start: float = 0.0,
) -> Any:  # fmt: skip
    """A record at T = 0 whose agreement repeats `beta` from text to text; what its passes cost is in steps."""
    prompts, place = [], 0
    for index, length in enumerate(lengths):
        along = [float(beta[(place + at) % len(beta)]) for at in range(length)]
        place += length
        rows, done = [], 0
        while done < length:
            drafted = gamma
            agreed = int(np.cumprod([*along[done : done + drafted], *[0] * (done + drafted - length)]).sum())
            emitted = min(agreed + 1, length - done)
            times = {"draft_s": drafted * c * STEP_S, "verify_s": v * STEP_S, "accept_s": accept * STEP_S}
            rows.append(Pass(drafted, min(agreed, emitted), emitted, **times, tokens=[0] * drafted))
            done += emitted
        spent = sum(one.draft_s + one.verify_s + one.accept_s for one in rows)
        baseline = Trace([0] * length, STEP_S, length * STEP_S, steps_s=[STEP_S] * length)
        ours = Trace([0] * length, STEP_S * (1 + start), spent * (1 + other), passes=rows)
        prompts.append(
            {
                "index": index,
                "prompt": f"p{index}",
                "prompt_tokens": 3,
                "baseline": baseline,
                "speculative": ours,
                "beta": along,
            }
        )
    summary = {"gamma": gamma, "temperature": 0.0, "simulated": False, "accept": "exact"}
    summary |= {f"speedup{part}_{end}": None for part in ("", "_end_to_end") for end in ("low", "high")}
    return {"summary": summary, "config": {"draft": {"kind": "model"}, "max_new_tokens": 10_000}, "prompts": prompts}


def product(found: Waterfall) -> float:
    return found.ideal * float(np.prod([step.factor.value for step in found.steps if step.step != "start"]))


@pytest.mark.parametrize("head", KEPT, ids=lambda head: head.run_id)
def test_factors_of_kept_records_multiply_to_the_measured_speedup(head: Head) -> None:
    record = store.read(head.file)
    found, summary = waterfall(record), record["summary"]
    assert product(found) == pytest.approx(found.measured.value, rel=1e-12)
    assert found.measured.value == pytest.approx(summary["speedup_measured"], rel=1e-9)
    assert found.end_to_end.value == pytest.approx(summary["speedup_end_to_end"], rel=1e-9)
    assert found.measured.value * found.steps[-1].factor.value == pytest.approx(found.end_to_end.value, rel=1e-12)
    total_ms = float(found.levels.step_ms) * (1 / found.end_to_end.value - 1 / found.ideal)
    assert sum(step.ms.value for step in found.steps) == pytest.approx(total_ms, rel=1e-9)
    if len(record["prompts"]) > 1:  # one prompt has no interval
        assert all(step.factor.low is not None and step.factor.low <= step.factor.high for step in found.steps)
    assert sentences(found) and json.dumps(to_json(found.explanation))


def test_greedy_decoding_of_chains_leaves_nothing_over() -> None:
    """At T = 0 the walk along a text needs the passes of decoding, but where rounding parted the texts."""
    rests = []
    for head in kept(**CHAIN, draft="t5-nano", temperature=0):
        found = waterfall(store.read(head.file), intervals=False)
        rests += [step.factor.value for step in found.steps if step.step == "rest" and found.sample.gamma]
    assert len(rests) >= 5 and rests == pytest.approx([1.0] * len(rests), abs=0.005)


CAUSES: dict[str, dict[str, Any]] = {
    "rejections": {"beta": (1.0, 1.0, 0.0)},
    "ends": {"lengths": [6] * 40},
    "positions": {"beta": [1.0] * 100 + [0.0] * 50},
    "drafting": {"c": 0.3},
    "verification": {"v": 1.6},
    "overhead": {"accept": 0.4},
    "rest": {"other": 0.3},
}


@pytest.mark.parametrize("cause", [name for name in CAUSES if name != "positions"])
def test_a_planted_cause_is_the_first_lever(cause: str) -> None:
    found = waterfall(planted(**CAUSES[cause]))
    assert found.levers[0].step == cause
    assert product(found) == pytest.approx(found.measured.value, rel=1e-12)
    others = [step.factor.value for step in found.steps if step.step not in (cause, "start")]
    if cause != "rejections":  # agreement that comes in a pattern is dependence too, and every text has an end
        assert others == pytest.approx([1.0] * len(others), abs=0.02)
    assert found.levers[0].alone == pytest.approx(5.0, rel=0.03) or cause == "ends"


def test_stretches_of_agreement_are_positions_that_are_not_independent() -> None:
    found = waterfall(planted(**CAUSES["positions"]), intervals=False)
    steps = {step.step: step for step in found.steps}
    assert steps["positions"].factor.value == pytest.approx(150 / 70 / theory.expected_tokens(2 / 3, 4), rel=0.05)
    assert steps["rest"].factor.value == pytest.approx(1.0)


def test_encoder_and_prefill_come_after_the_measured_speedup() -> None:
    found = waterfall(planted(lengths=[20] * 10, start=30.0), intervals=False)
    assert found.steps[-1].step == "start" and found.steps[-1].factor.value < 0.5
    assert "start" not in [step.step for step in found.levers]
    assert "encoder and prefill" in sentences(found)[-1]


def test_a_tree_goes_level_by_level() -> None:
    """Two children a node, two levels: the second child makes good for the first, so the tree gains over a chain."""
    record, draw = planted(lengths=[100] * 5), np.random.default_rng(3)
    for prompt in record["prompts"]:
        passes, done = [], 0
        while done < 100:
            path = [int(draw.integers(2))] if draw.random() < 0.8 else []
            path += [2 + 2 * path[0] + int(draw.integers(2))] if path and draw.random() < 0.6 else []
            emitted = min(len(path) + 1, 100 - done)
            counts = {"drafted": 6, "accepted": min(len(path), emitted), "emitted": emitted}
            tree = {"parents": [-1, -1, 0, 0, 1, 1], "path": path}
            passes.append(replace(prompt["speculative"].passes[0], **counts, **tree))
            done += emitted
        prompt["speculative"] = replace(prompt["speculative"], passes=passes, decode_s=len(passes) * STEP_S)
        prompt["beta"] = [0.5] * 100
    found = waterfall(record)
    steps = {step.step: step for step in found.steps}
    assert found.ideal == 3 and list(steps)[:3] == ["rejections", "shape", "ends"] and "positions" not in steps
    assert steps["rejections"].speedup == pytest.approx(1.75) and steps["shape"].factor.value > 1.2
    assert steps["shape"].speedup == pytest.approx(1 + 0.8 + 0.48, rel=0.1)
    assert product(found) == pytest.approx(found.measured.value) and "tree" in found.sample.missing[0]
    assert {one.quantity: one for one in needs(found, 2.5)}["alpha"].why


def test_a_table_of_ends_counts_the_passes_of_a_walk() -> None:
    for chances in ([0.7] * 5, [0.8, 0.5, 0.2]):
        table = passes_to_come(np.array(chances), 20)
        for length in (1, 3, 9, 20):
            ahead = [[chance] * length for chance in chances[1:]]
            walked = walk([chances[0]] * length, len(chances), ahead=ahead).passes.sum()
            assert table[length] == pytest.approx(walked)
    assert expected_by_position(np.array([0.8] * 7)) == pytest.approx(theory.expected_tokens(0.8, 7))


def test_needs_give_the_speedup_when_they_are_met() -> None:
    """What is said to be needed is planted, and the speedup comes out."""
    before = {"lengths": [60] * 20, "beta": (1.0, 1.0, 1.0, 0.0), "c": 0.2, "v": 1.3, "accept": 0.1}
    found = waterfall(planted(**before), intervals=False)
    wanted = 1.1 * found.measured.value
    by = {one.quantity: one for one in needs(found, wanted)}
    assert by["c"].now == pytest.approx(0.2) and by["verify_cost"].now == pytest.approx(1.3)
    for key, quantity in (("c", "c"), ("v", "verify_cost")):
        changed = waterfall(planted(**before | {key: by[quantity].needed}), intervals=False)
        assert changed.measured.value == pytest.approx(wanted, rel=1e-6)
    assert by["alpha"].now == pytest.approx(0.75) and 0.75 < (by["alpha"].needed or 0) < 1
    impossible = {one.quantity: one for one in needs(found, 4.9)}
    assert impossible["c"].needed is None and impossible["alpha"].needed is None
    said = needed(4.9, list(impossible.values()))
    assert all("not possible" in line for line in said if "tokens per pass" not in line)
    assert {one.quantity: one for one in needs(found, 100)}["tokens_per_pass"].needed is None
    slow = {one.quantity: one for one in needs(found, 0.1)}["alpha"]
    assert slow.needed is None and slow.limit == 0 and slow.most is not None and 0.1 < slow.most < found.measured.value


def test_ends_are_told_with_longer_texts() -> None:
    found = waterfall(planted(lengths=[9] * 30, gamma=7), intervals=False)
    assert str(largest(found)).startswith("ends of completions; completions without an end would give 8.00×")
    said = sentences(found)[0]
    assert said.startswith("completions of 9 tokens end inside passes: 4.50 tokens per pass instead of 8.00")
    assert "7.20 with completions of 36 tokens" in said


@pytest.mark.parametrize(("multiplying_ms", "said"), [(0.1, "from Ω = 3.0 tokens on"), (0.01, "up to Ω = 30.0 tokens")])
def test_verification_names_what_binds_it(multiplying_ms: float, said: str) -> None:
    record = planted(lengths=[60] * 20, gamma=7, v=2.0)
    assert not any("Ω" in line for line in sentences(waterfall(record, intervals=False)))  # an older record
    record["summary"] |= {"reading_ms": 0.3, "multiplying_ms": multiplying_ms}
    found = waterfall(record, intervals=False)
    (verifying,) = [line for line in sentences(found) if line.startswith("verifying")]
    (line,) = [line for line in sentences(found) if "Ω" in line]
    least = max(0.3, float(verifying.split()[1]) * multiplying_ms)
    assert said in line and f"a step takes 0.30 ms at least, these tokens {least:.2f} ms" in line
    record["summary"]["reading_ms"] = 1.1 * float(found.levels.step_ms)  # a step that is faster than its bound
    assert not any("Ω" in line for line in sentences(waterfall(record, intervals=False)))


def test_explain_shows_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = make(tmp_path)
    assert main(["explain", run_id, f"results={tmp_path}", "--for-speedup", "2"]) == 0
    shown = capsys.readouterr().out
    assert "rejections (α, Eq. 1)" in shown and "unexplained" in shown and "a speedup of 2 with only c changed" in shown
    assert main(["explain", run_id, f"results={tmp_path}", "--format", "json", "--for-speedup", "2"]) == 0
    document = json.loads(capsys.readouterr().out)
    factors = [step["factor"]["value"] for step in document["steps"][:-1]]
    assert document["ideal"] * np.prod(factors) == pytest.approx(document["measured"]["value"])
    assert {need["quantity"] for need in document["needs"]} == {"tokens_per_pass", "alpha", "c", "verify_cost"}
    assert main(["explain", run_id, f"results={tmp_path}", "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("run_id,step,factor.value,factor.low")
    picture = tmp_path / "w.svg"
    assert main(["explain", run_id, f"results={tmp_path}", "--picture", str(picture)]) == 0
    assert picture.is_file()


def test_a_run_shows_and_keeps_its_explanation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = make(tmp_path)
    record = explained(store.read(store.record_file(tmp_path, run_id)))
    assert faults_of(record) == []
    with Screen(sys.stderr) as screen:
        screen.show(Result(store.record_file(tmp_path, run_id), record, reused=False))
    shown = capsys.readouterr().out
    explanation = record["explanation"]
    assert explanation is not None and "largest loss: " in shown and f"specbench explain {digest(run_id)}" in shown
    assert explanation.levers[0] == waterfall(record).levers[0].step


def test_a_run_without_a_speed_is_not_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = make(tmp_path, summary_speedup_measured=None)
    assert main(["explain", run_id, f"results={tmp_path}"]) == 2
    assert "no speedup to explain" in capsys.readouterr().err
    assert main(["explain", run_id, f"results={tmp_path}", "--for-speedup", "0"]) == 2
    assert "--for-speedup 0: must be a number above 0" in capsys.readouterr().err
    assert main(["explain", run_id, f"results={tmp_path}", "--for-speedup", "inf"]) == 2
    assert "--for-speedup inf: must be a number above 0" in capsys.readouterr().err
    assert main(["explain", run_id, f"results={tmp_path}", "--picture", "w.jpg"]) == 2
    assert "--picture w.jpg: must end in .svg" in capsys.readouterr().err


def test_a_run_of_a_batch_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", newest(batch=4).run_id, "--results", str(RESULTS)]) == 2
    assert "one prompt at a time" in capsys.readouterr().err


def test_explain_says_what_longer_prompts_do_to_the_speedup() -> None:
    record = planted(lengths=[20] * 10, start=30.0)
    for prompt in record["prompts"]:
        prompt["prompt_tokens"] = 101
    found = waterfall(record, intervals=False)
    one, four = (speedup_with_longer_prompts(found.sample.totals, times) for times in (1, 4))
    assert one == pytest.approx(found.end_to_end.value) and four < one
    assert f"; {four:.2f}× with prompts of 400 tokens instead of 100" in sentences(found)[-1]


@pytest.mark.parametrize("loop_ms", [0.2, 2.0])
def test_the_loop_around_the_models_is_told_apart(loop_ms: float) -> None:
    """A loop of so many ms beside passes whose models take 1.5 steps: on slower models it no longer counts."""
    record = planted(gamma=1, c=0.5, v=1.0, accept=loop_ms / 1000 / STEP_S)
    for prompt in record["prompts"]:
        prompt["speculative"].passes = [
            replace(one, draft_run_s=one.draft_s, verify_run_s=one.verify_s, loop_s=one.accept_s)
            for one in prompt["speculative"].passes
        ]
    found = loop_share(record)
    assert found is not None
    assert found.ms == pytest.approx(loop_ms) and found.share == pytest.approx(loop_ms / (loop_ms + 1.5 * 2))
    assert found.without == pytest.approx(2 / 1.5)
    assert found.at_step_ms[1.0] == pytest.approx(2 / (1.5 + loop_ms))
    assert found.at_step_ms[100.0] == pytest.approx(2 / (1.5 + loop_ms / 100))
    (line,) = of_loop(found)
    assert "as it is, " in line and "where a target step takes 1, 10, 100 ms" in line
    assert of_loop(replace(found, share=0.001)) == of_loop(loop_share(planted())) == []
