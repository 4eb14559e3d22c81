"""Costs from probes, speedups from agreement and costs, the cover of their intervals, and what is said of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from specbench import theory
from specbench.analysis.acceptance.agreement import Agreement, agreements
from specbench.analysis.costs.costs import Costs
from specbench.analysis.forecast.predict import Predictions
from specbench.choose.reasons import reasons, winning_alpha, winning_c
from specbench.methods.model.draft import ModelDraft
from specbench.records.timed_rounds import Round, Timed
from specbench.sampling import Sampling
from specbench.stats import Interval
from tests.support.decode import autoregressive, speculative
from tests.support.predictions import STEP, fake_round, predictions, texts
from tests.support.toy import PROMPT, VOCABULARY, ToyModel, random_table


def test_costs_are_in_target_steps_however_slow_the_machine() -> None:
    rounds = [fake_round({"a": 0.1, "b": 0.3}, [1, 4], slow=slow) for slow in (1, 3, 1.5)]
    table = Costs(rounds).prices().costs
    assert table["a", 4].c == pytest.approx(0.1) and table["b", 1].c == pytest.approx(0.3)
    assert table["a", 4].verify_cost == pytest.approx(1.2) and table["a", 4].overhead == pytest.approx(0.02)
    assert table["a", 4].of_pass(4) == pytest.approx(0.4 + 1.2 + 0.02)
    assert table["a", 4].passes == 12


def test_a_gamma_without_a_full_pass_has_no_cost() -> None:
    one = fake_round({"a": 0.1}, [2, 5])
    stopped = [Timed(5, 1, 0, False, 1, 1, 1)]
    short = Round.of({key: stopped if key[1] == 5 else p for key, p in one.by_key.items()}, one.steps_s)
    assert set(Costs([short, short]).prices().costs) == {("a", 2)}


def test_passes_that_draft_less_or_nothing_cost_what_was_timed() -> None:
    """Exact where each drafted token costs the same, whatever a pass without any costs."""
    timed = [Timed(4, drafted, 0, False, STEP * 0.1 * drafted, STEP * 1.7, 0.0) for drafted in (0, 1, 2, 3, 4, 4)]
    rounds = [Round.of({("a", 4): timed}, [STEP] * 8) for _ in range(4)]
    assert Costs(rounds).prices().of_passes(("a", 4))[1] == pytest.approx(1.7 + 0.1 * np.arange(5))


def test_interruptions_cancel_in_the_cost_of_a_pass() -> None:
    """They last 1.8 steps, and fall as often on a second of steps as on a second of passes, which take four steps."""
    steps = [STEP * (1 + 1.8 * (number % 50 == 0)) for number in range(100)]
    passes = [Timed(2, 2, 0, False, STEP, STEP * (3 + 1.8 * (number % 25 in (0, 12))), 0.0) for number in range(100)]
    rounds = [Round.of({("a", 2): passes}, steps)] * 2
    assert Costs(rounds).prices().costs["a", 2].of_pass(2) == pytest.approx(4.0)
    # One that lasts longer than any pass is left out, of steps and passes, and another candidate changes nothing.
    long = [*passes, Timed(2, 2, 0, False, STEP, STEP * 11, 0.0)]
    slow = [Timed(9, 9, 0, False, STEP * 9, STEP * 20, 0.0)] * 9
    rounds = [Round.of({("a", 2): long, ("b", 9): slow}, [*steps, STEP * 8])] * 2
    assert Costs(rounds).prices().costs["a", 2].of_pass(2) == pytest.approx(4.0)


def test_equal_prompts_count_once() -> None:
    once, rounds = texts(0.7, 12, 0), [fake_round({"a": 0.05}, [2, 5], 0.1, seed) for seed in range(4)]
    alone = Predictions({"a": once}, rounds, 128, 200, seed=0)
    thrice = Predictions({"a": [*once] * 3}, rounds, 128, 200, seed=0, groups=[*range(12)] * 3)
    for one, other in zip(alone.ranked, thrice.ranked, strict=True):
        for ours, theirs in ((one.alpha, other.alpha), (one.estimated, other.estimated)):
            assert (ours.value, ours.low, ours.high) == pytest.approx((theirs.value, theirs.low, theirs.high))
    (one, _) = Predictions({"a": [*once] * 3}, rounds, 128, 200, seed=0, groups=[0] * 36).ranked
    assert one.alpha.low is None and one.estimated.low is None


def test_where_positions_are_independent_both_ways_agree() -> None:
    table = predictions({"a": 0.7}, {"a": 0.05}, prompts=400)
    for one in table.ranked:
        assert one.tokens_per_pass == pytest.approx(one.tokens_per_pass_iid, rel=0.06)  # texts end; Eq. 1 has no end
        assert one.predicted == pytest.approx(theory.walltime_improvement(one.alpha.value, one.gamma, 0.05))
        cost = one.gamma * 0.05 + 1 + 0.05 * one.gamma + 0.02
        assert one.calibrated == pytest.approx(one.tokens_per_pass_iid / cost)
        assert one.estimated.low <= one.estimated.value <= one.estimated.high
    assert [one.estimated.value for one in table.ranked] == sorted(
        (one.estimated.value for one in table.ranked), reverse=True
    )


def test_stretches_that_are_easy_and_hard_are_not_what_equation_one_thinks() -> None:
    """Half of the texts always agree, half never: alpha is 1/2, and a long gamma pays on the easy half only."""
    agreed = [Agreement([1.0] * 30, [1.0] * 30), Agreement([0.0] * 30, [0.0] * 30)] * 5
    (one,) = Predictions({"a": agreed}, [fake_round({"a": 0.0}, [5])] * 2, 64, 100, 0).ranked
    assert one.alpha.value == 0.5
    assert one.tokens_per_pass_iid == pytest.approx(1.97, abs=0.01)
    assert one.tokens_per_pass == pytest.approx(60 / 35, rel=0.03)  # the easy half in 5 passes, the hard one in 30


@pytest.mark.parametrize("gamma", [1, 3, 6])
def test_at_temperature_zero_the_estimated_speedup_is_that_of_decoding_at_these_prices(gamma: int) -> None:
    """Decode for real on the toy model, price every pass by the table, and compare. Texts do not end here: a draft that
    draws the end after a rejected token stops early, which is seen by nobody who only reads the target's completion."""

    class Endless(ToyModel):
        eos_ids: frozenset[int] = frozenset()

    target, greedy = Endless(random_table(2)), Sampling(0.0)
    draft = ModelDraft(Endless(0.5 * random_table(2) + 0.5 * random_table(7)), VOCABULARY)
    generator = torch.Generator().manual_seed(0)
    keys = {"sampling": greedy, "max_new_tokens": 40, "generator": generator}
    text = autoregressive(target, PROMPT, **keys).tokens  # type: ignore[arg-type]
    trace = speculative(target, draft, PROMPT, gamma=gamma, **keys)  # type: ignore[arg-type]
    found = {"a": agreements(target, [draft], PROMPT, text, greedy)}
    rounds = [fake_round({"a": 0.1}, range(1, gamma + 1))] * 2
    one = next(p for p in Predictions(found, rounds, 40, 100, 0).ranked if p.gamma == gamma)
    spent = sum(p.drafted * 0.1 + 1 + 0.05 * p.drafted + 0.02 for p in trace.passes)
    assert one.tokens_per_pass == pytest.approx(len(text) / len(trace.passes))
    assert one.estimated.value == pytest.approx(len(text) / spent)


@pytest.mark.full
@pytest.mark.statistical
def test_the_interval_of_the_estimated_speedup_covers_the_truth() -> None:
    """Independent positions with alpha 0.7 and timings with 20% noise; 150 samples of 30 prompts and 8 rounds. The
    truth is from one very large sample. The floor holds with a false alarm for fewer than one seed in 1,000."""
    many = Predictions({"a": texts(0.7, 20_000, 99)}, [fake_round({"a": 0.1}, [3])] * 2, 128, 2, 0)
    truth, covered = many.ranked[0].estimated.value, 0
    for seed in range(150):
        rounds = [fake_round({"a": 0.1}, [3], 0.2, 1000 * seed + number) for number in range(8)]
        (one,) = Predictions({"a": texts(0.7, 30, seed)}, rounds, 128, 200, seed).ranked
        covered += one.estimated.low <= truth <= one.estimated.high
    assert covered / 150 >= 0.85


def test_reasons_name_what_decides() -> None:
    table = predictions({"cheap": 0.5, "good": 0.75}, {"cheap": 0.01, "good": 0.6})
    said = "\n".join(reasons(table))
    assert table.ranked[0].draft == "cheap" and "cheap with γ=" in said
    assert "cheap with γ=3 beats good with γ=1 by 48%" in said
    assert "α 0.48 against 0.73, c 0.010 against 0.600, verifying 1.15 against 1.05" in said
    assert "to win, good with γ=" in said


def test_only_what_differs_is_compared() -> None:
    """Two drafts that cost the same, to the last digit printed."""
    costs = {"worse": 0.001, "better": 0.0014}
    rounds = [fake_round(costs, [3])] * 2
    found = {"worse": texts(0.1, 40, 0), "better": texts(0.5, 40, 1)}
    table = Predictions(found, rounds, 128, 200, seed=0)
    (line,) = [line for line in reasons(table) if " beats " in line]
    assert line.startswith("better with γ=3 beats worse with γ=3 by ") and line.endswith("; α 0.50 against 0.09")
    table = Predictions(dict.fromkeys(costs, found["better"]), rounds, 128, 200, seed=0)
    assert any(line.endswith("; α, c, verifying and accepting are alike") for line in reasons(table))


def test_the_first_sentence_says_that_a_gain_is_not_significant() -> None:
    """Six completions, one with full agreement: the interval contains 1."""
    agreed = [Agreement([float(index == 0)] * 30, [float(index == 0)] * 30) for index in range(6)]
    (table,) = [Predictions({"a": agreed}, [fake_round({"a": 0.01}, [5])] * 3, 64, 200, 0)]
    (best,) = table.ranked
    best_low, best_high = best.estimated.low, best.estimated.high
    table.ranked = [replace(best, estimated=Interval(1.13, min(best_low, 0.93), max(best_high, 1.63)))]
    (first, *_) = reasons(table)
    assert first.startswith("no significant gain: the best, a with γ=5, would be 1.13× (calibrated, 0.")
    assert "from 6 prompts" in first and "faster" not in first
    table.ranked = [replace(best, estimated=Interval(1.13, None, None))]
    assert reasons(table)[0].startswith("a single prompt cannot show a gain")
    table.ranked = [replace(best, estimated=Interval(0.97, 0.9, 1.08))]
    assert "0.97× the target's own speed (95%: 0.90–1.08)" in reasons(table)[0]


@pytest.mark.full
def test_what_would_let_the_next_one_win_does() -> None:
    table = predictions({"cheap": 0.4, "good": 0.75}, {"cheap": 0.01, "good": 0.5}, prompts=300)
    best = table.ranked[0]
    other = next(one for one in table.ranked if one.draft != best.draft)
    c = winning_c(best, other)
    assert c is not None and 0 < c < other.cost.c
    tied = predictions({"cheap": 0.4, "good": 0.75}, {"cheap": 0.01, "good": c}, prompts=300)
    again = next(one for one in tied.ranked if (one.draft, one.gamma) == (other.draft, other.gamma))
    assert again.estimated.value == pytest.approx(best.estimated.value, rel=0.02)
    alpha = winning_alpha(best, other)
    if alpha is not None:
        assert alpha > other.alpha.value


def test_a_draft_that_cannot_help_is_told() -> None:
    said = reasons(predictions({"bad": 0.1}, {"bad": 0.5}))
    assert said[0].startswith("no draft helps here: the best, bad with γ=1")
    assert "not above c=0.50 (Cor 3.9)" in said[0]
