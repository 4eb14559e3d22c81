"""Probes: passes of the real loop, what they cost on a clock without noise, and the chain from them to a walltime."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from specbench.analysis.acceptance.agreement import agreements
from specbench.analysis.costs.costs import Costs
from specbench.analysis.costs.probe import COLD, Candidate, WrittenText, in_turn_of, probe, start_of, text_of
from specbench.analysis.forecast.predict import Predictions
from specbench.engine.session import Prompt
from specbench.methods.model.draft import ModelDraft
from specbench.methods.ngram.draft import UniformDraft
from specbench.records.decoded import Trace
from specbench.sampling import Sampling
from tests.support.decode import autoregressive, spec_of, speculative
from tests.support.toy import PROMPT, START, VOCABULARY, ToyModel, random_table

GAMMAS = [1, 2, 3, 5, 7]


def test_probes_are_passes_of_the_loop_inside_the_texts() -> None:
    target = ToyModel(random_table(3))
    spec = spec_of(Sampling(1.0), 40)
    drafts = {
        "near": Candidate(ModelDraft(ToyModel(random_table(4)), VOCABULARY), spec),
        "any": Candidate(UniformDraft(4, torch.device("cpu")), spec),
    }
    text = [1, 2, 1, 0, 2, 1, 1, 2, 0, 1] * 4
    rounds = probe(target, drafts, [1, 3], [(PROMPT, text)] * 2, rounds=6)
    assert len(rounds) == 6
    table = Costs(rounds).prices().costs
    assert set(table) == {(name, gamma) for name in drafts for gamma in (1, 3)}
    assert all(cost.c > 0 and cost.verify_cost > 0 and cost.overhead > 0 for cost in table.values())


class Clock:
    seconds = 0.0


class Clocked(ToyModel):
    """A toy model on a clock that only its own work moves: a + b n for n tokens, and more for the first run of a text.
    No noise, so that what is left between a prediction and a measurement is the prediction's own error."""

    eos_ids: frozenset[int] = frozenset()

    def __init__(self, table: torch.Tensor, clock: Clock, step: float, more: float, begin: float = 0.0) -> None:
        super().__init__(table)
        self.clock, self.step, self.more, self.begin = clock, step, more, begin

    def start(self, prompt):  # type: ignore[no-untyped-def]
        session = super().start(prompt)
        extend = session.extend

        def timed(tokens: Sequence[int], parents: Sequence[int] | None = None) -> torch.Tensor:
            self.clock.seconds += self.step + self.more * (len(tokens) - 1) + self.begin * (not session.length)
            return extend(tokens, parents)

        session.extend = timed  # type: ignore[method-assign]
        return session

    def now(self) -> float:
        return self.clock.seconds


def chained(
    temperature: float, most: int, begin: float = 0.0
) -> tuple[Predictions, dict[int, list[Trace]], list[float]]:
    """Sample, score, probe, predict; then decode with every gamma. Also the seconds that scoring and decoding took."""
    clock, sampling = Clock(), Sampling(temperature)
    table = random_table(21) ** 2
    table /= table.sum(-1, keepdim=True)
    target = Clocked(table, clock, 1.0, 0.06, begin)
    draft = ModelDraft(Clocked(0.6 * table + 0.4 * random_table(22), clock, 0.1, 0.01, begin / 10), VOCABULARY)
    prompts = [Prompt((), (START, a, b)) for a in (0, 1, 2) for b in (0, 1, 2)] * 4
    generator = torch.Generator().manual_seed(4)
    keys = {"sampling": sampling, "max_new_tokens": most, "generator": generator}
    written = [autoregressive(target, prompt, **keys).tokens for prompt in prompts]  # type: ignore[arg-type]
    began = clock.seconds
    found = [agreements(target, [draft], p, t, sampling)[0] for p, t in zip(prompts, written, strict=True)]
    spent = [clock.seconds - began]
    begun = list(zip(prompts, written, strict=True))
    rounds = probe(target, {"a": Candidate(draft, spec_of(sampling, most))}, GAMMAS, begun, rounds=len(prompts))
    began = clock.seconds
    traces = {
        gamma: [speculative(target, draft, prompt, gamma=gamma, **keys) for prompt in prompts]  # type: ignore[arg-type]
        for gamma in GAMMAS
    }
    spent.append(clock.seconds - began)
    base = [autoregressive(target, prompt, **keys) for prompt in prompts]  # type: ignore[arg-type]
    return Predictions({"a": found}, rounds, most, 100, 0), traces | {0: base}, spent


def test_what_follows_a_jump_into_a_text_does_not_count() -> None:
    """On a clock on which the first runs of a session take twice as long, as weights that no cache holds."""
    clock = Clock()
    target, small = (Clocked(random_table(seed), clock, step, 0.0) for seed, step in ((3, 1.0), (4, 0.1)))
    started = target.start

    def cold_at_first(prompt: Prompt) -> Any:
        session, runs = started(prompt), iter((1.0, 1.0, 1.0))
        extend = session.extend

        def slow(tokens: Sequence[int], parents: Sequence[int] | None = None) -> torch.Tensor:
            clock.seconds += next(runs, 0.0)
            return extend(tokens, parents)

        session.extend = slow
        return session

    target.start = cold_at_first  # type: ignore[method-assign]
    text = [1, 2, 1, 0, 2, 1, 1, 2, 0, 1] * 20
    candidate = Candidate(ModelDraft(small, VOCABULARY), spec_of(Sampling(), 200))
    rounds = probe(target, {"a": candidate}, [1, 3], [(PROMPT, text)] * 2, rounds=6)
    prices = Costs(rounds[1:]).prices()  # round 0 jumps nowhere
    assert prices.first_step == pytest.approx(2.0)
    assert prices.costs["a", 3].verify_cost == pytest.approx(1.0) and prices.costs["a", 1].c == pytest.approx(0.1)


def per_token(traces: Sequence[Trace]) -> float:
    return sum(t.decode_s for t in traces) / sum(len(t.tokens) for t in traces)


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_whole_chain_foretells_what_decoding_then_measures(temperature: float) -> None:
    """Within 5% for each gamma (at T=1 both sides are samples, of about 1,500 tokens). Theorem 3.8 is off by more."""
    table, traces, _ = chained(temperature, most=45)
    missed = []
    for one in table.ranked:
        measured = per_token(traces[0]) / per_token(traces[one.gamma])
        assert one.estimated.value == pytest.approx(measured, rel=0.05), one.gamma
        missed.append(one.predicted / measured - 1)
    assert max(missed) > 0.08


def test_what_begins_a_text_is_counted_where_texts_are_short() -> None:
    """The first run of a text takes half a step more. With a draft, passes are fewer and it weighs more; at T=0 nothing
    else is left to chance, so that estimated is within 1%. Without it, it would be off by 5% and more."""
    table, traces, _ = chained(0.0, most=8, begin=0.5)
    off = []
    for one in table.ranked:
        measured = per_token(traces[0]) / per_token(traces[one.gamma])
        assert one.estimated.value == pytest.approx(measured, rel=0.01), one.gamma
        plain = len(table.tokens_P) / table.tokens_P.sum() * 0.5 + 1  # the baseline's own share is in both
        usual = one.tokens_per_pass / (one.drafted_per_pass * one.cost.c + one.cost.verify_cost)
        off.append(abs(usual * plain / measured - 1))
    assert max(off) > 0.05


@pytest.mark.full
def test_alpha_is_learnt_ten_times_faster_than_by_decoding() -> None:
    """By the time of the models' own work: one reading of the sample against one decoding for each of five gammas."""
    table, _, (scoring, decoding) = chained(1.0, most=45)
    assert len(table.ranked) == 5 and decoding > 10 * scoring


@pytest.mark.full
@pytest.mark.statistical
def test_proposals_that_end_early_are_counted_as_the_probe_saw_them() -> None:
    """On the toy model ends are frequent. Tokens drafted a pass: as decoding has them, within 6% (both are samples)."""
    sampling, target = Sampling(1.0), ToyModel(random_table(31))
    draft = ModelDraft(ToyModel(0.4 * random_table(31) + 0.6 * random_table(32)), VOCABULARY)
    generator = torch.Generator().manual_seed(4)
    keys = {"sampling": sampling, "max_new_tokens": 40, "generator": generator}
    written = [autoregressive(target, PROMPT, **keys).tokens for _ in range(400)]  # type: ignore[arg-type]
    found = {"a": [agreements(target, [draft], PROMPT, text, sampling)[0] for text in written]}
    candidates = {"a": Candidate(draft, spec_of(sampling, 40))}
    rounds = probe(target, candidates, [3, 6], [(PROMPT, t) for t in written], rounds=300)
    assert 0.05 < Costs(rounds).stops("a") < 0.5
    for one in Predictions(found, rounds, 40, 2, 0).ranked:
        traces = [speculative(target, draft, PROMPT, gamma=one.gamma, **keys) for _ in range(400)]  # type: ignore[arg-type]
        passes = [a_pass for trace in traces for a_pass in trace.passes]
        drafted = sum(a_pass.drafted for a_pass in passes) / len(passes)
        assert one.drafted_per_pass == pytest.approx(drafted, rel=0.06)
        assert drafted < 0.8 * one.gamma


def test_a_draft_that_never_ends_a_proposal_early() -> None:
    target = ToyModel(random_table(3))
    candidates = {"a": Candidate(UniformDraft(4, torch.device("cpu")), spec_of(Sampling(1.0), 24))}
    rounds = probe(target, candidates, [3], [(PROMPT, [1, 2, 1, 0] * 6)], rounds=4)
    assert Costs(rounds).stops("a") is None


def test_what_counts_lies_in_the_middle_of_texts_in_the_mean() -> None:
    """A text is visited as often as its share of all tokens, and the steps that count lie around its middle."""

    def of_lengths(*lengths: int) -> list[WrittenText]:
        return [(PROMPT, [1] * length) for length in lengths]

    for rounds in (8, 16, 24, 960):
        visited = [text_of(of_lengths(128, 2, 62), number) for number in range(rounds)]
        shares = [rounds * share / 192 for share in (128, 2, 62)]
        assert [visited.count(text) for text in range(3)] == pytest.approx(shares, abs=2)
        assert len({text_of(of_lengths(*[10] * 8), number) for number in range(rounds)}) >= (7 if rounds == 8 else 8)
    assert text_of(of_lengths(0, 0), 3) == 1  # whatever, but no fault
    starts = [start_of(128, 16, number, COLD) for number in range(400)]
    counted = [range(1 if start == 0 else start + COLD, start + 16) for start in starts]
    assert np.mean([np.mean(one) for one in counted]) == pytest.approx(64, abs=1.5)
    for count in (1, 2, 8, 91):
        assert sorted(in_turn_of(count, number) for number in range(count)) == list(range(count))
