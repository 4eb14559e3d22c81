"""From raw prompts to numbers: alpha, c, v, speedups, intervals and their cover, and when a speed is withheld."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from specbench import theory
from specbench.algorithm.acceptance.rules.lenient import lenient
from specbench.analysis.acceptance.agreement import agreements
from specbench.analysis.acceptance.by_position import acceptance_by_position
from specbench.analysis.forecast import tokens_by_position
from specbench.analysis.forecast.theorems import acceptance_when_asked
from specbench.analysis.paired import compare, shared
from specbench.analysis.proof.departures import decided, first_difference
from specbench.analysis.summary import summarise, verify_cost
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.methods.model.draft import ModelDraft
from specbench.methods.ngram.draft import UniformDraft
from specbench.records import store
from specbench.records.decoded import Pass, Trace
from specbench.records.prompt_sums import Difference
from specbench.sampling import Sampling, standardise
from specbench.stats import over_rows, ratio, ratio_of_ratios
from tests.support.decode import speculative
from tests.support.kept_records import newest
from tests.support.networks import network
from tests.support.toy import PROMPT, VOCABULARY, ToyModel, random_table

TARGET = ToyModel(random_table(1))
DRAFT = ModelDraft(ToyModel(0.6 * random_table(1) + 0.4 * random_table(2)), VOCABULARY)


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(1.0), Sampling(0.8, top_k=2)])
def test_beta_is_the_overlap_at_every_generated_token(sampling: Sampling) -> None:
    text = [1, 2, 2, 0, 3]
    got = agreements(TARGET, [DRAFT], PROMPT, text, sampling)[0].beta
    tokens = [*PROMPT.prefix, *text]
    assert len(got) == len(text)
    for index, value in enumerate(got):
        p = standardise(TARGET.start(PROMPT).extend(tokens[: index + 1])[-1:], sampling, VOCABULARY)
        q = standardise(DRAFT.model.start(PROMPT).extend(tokens[: index + 1])[-1:], sampling, VOCABULARY)
        assert value == pytest.approx(p.minimum(q).sum().item(), abs=1e-6)
        if sampling.temperature == 0:
            assert value == float(p.argmax() == q.argmax())


def a_pass(drafted: int, accepted: int, emitted: int | None = None, **times: float) -> Pass:
    seconds = {"draft_s": 0.1 * drafted, "verify_s": 1.5, "accept_s": 0.01} | times
    emitted = accepted + 1 if emitted is None else emitted
    return Pass(drafted, accepted, emitted, **seconds)


NUMBERS = itertools.count()  # so that no two prompts are equal


def raw(tokens: int, passes: list[Pass], betas: list[float], difference: Difference | None = None) -> dict:  # type: ignore[type-arg]
    spent = sum(p.draft_s + p.verify_s + p.accept_s for p in passes)
    said: dict[str, Any] = {"tokens": [5] * tokens, "text": "a " * tokens}
    return {
        "prompt": f"b{next(NUMBERS)}",
        "prompt_tokens": 3,
        "baseline": Trace(**said, steps_s=[1.0] * tokens, decode_s=float(tokens), start_s=2.0),
        "speculative": Trace(**said, passes=passes, decode_s=spent, start_s=2.5),
        "beta": betas,
        "difference": difference,
    }


PROMPTS = [
    raw(6, [a_pass(3, 3), a_pass(3, 1)], [1.0, 1.0, 0.0, 1.0, 1.0, 0.0]),
    raw(5, [a_pass(3, 2), a_pass(3, 0), a_pass(1, 1, emitted=1)], [1.0, 0.0, 1.0, 1.0, 1.0]),
]


def summary(  # type: ignore[type-arg]
    prompts: list[dict] = PROMPTS,
    greedy: bool = True,
    gamma: int | None = 3,
    falls_with_position: bool = False,
    at_once: bool = False,
) -> dict:
    return summarise(
        prompts, gamma=gamma, greedy=greedy, c_hat=0.1, max_new_tokens=64,
        falls_with_position=falls_with_position, at_once=at_once,
    )  # fmt: skip


def test_every_rate_has_its_own_name() -> None:
    s = summary()
    assert s["alpha"] == pytest.approx(8 / 11)
    assert s["accepted_per_drafted"] == pytest.approx(7 / 13)
    assert s["tokens_per_pass"] == pytest.approx(11 / 5)
    assert s["tokens_per_pass_predicted"] == pytest.approx(theory.expected_tokens(8 / 11, 3))
    assert s["c"] == pytest.approx(0.1)
    assert s["verify_cost"] == pytest.approx(1.5)
    assert s["speedup_predicted"] == pytest.approx(theory.walltime_improvement(8 / 11, 3, 0.1))
    assert s["speedup_calibrated"] == pytest.approx(theory.expected_tokens(8 / 11, 3) / (3 * 0.1 + 1.5 + 0.01))
    assert s["prediction"] == "Eq. 1"
    assert s["operations_predicted"] == pytest.approx(theory.operations_increase(8 / 11, 3, 0.1))
    assert s["tokens_per_pass_histogram"] == {"1": 2, "2": 1, "3": 1, "4": 1}
    assert s["identical"] == 1.0 and s["lossless"]


def test_a_gamma_that_changed_from_pass_to_pass_predicts_nothing() -> None:
    s = summary(gamma=None)
    assert s["prediction"] is None
    for key in ("tokens_per_pass_predicted", "speedup_predicted", "speedup_calibrated", "operations_predicted"):
        assert s[key] is None
    assert s["drafted_per_pass"] == pytest.approx(13 / 5)
    assert s["verify_cost"] == pytest.approx(1.5)
    assert s["speedup_measured"] == summary()["speedup_measured"]


def test_where_agreement_falls_with_the_position_one_alpha_is_no_prediction() -> None:
    """A draft whose first token is always right, its second half of the time, its third never. Teacher forcing scores
    its first tokens, so that alpha is 1; 2.5 tokens per pass are right, of which Eq. 1 would make 4."""
    text = [a_pass(3, 1), a_pass(3, 2)] * 10
    prompts = [raw(50, text, [1.0] * 50)] * 2
    one_alpha, falling = summary(prompts), summary(prompts, falls_with_position=True)
    assert one_alpha["tokens_per_pass_predicted"] == pytest.approx(4)
    assert falling["prediction"] == "by position"
    tokens = falling["tokens_per_pass_predicted"]
    assert tokens == pytest.approx(2.5, rel=0.02) and falling["tokens_per_pass"] == 2.5  # 20 passes happen to fit
    assert falling["speedup_predicted"] == pytest.approx(tokens / (3 * 0.1 + 1))
    assert falling["speedup_calibrated"] == pytest.approx(tokens / (0.3 + 1.5 + 0.01))
    assert falling["operations_predicted"] == pytest.approx((3 * 0.1 + 3 + 1) / tokens)


def test_a_step_that_drafts_a_whole_proposal_has_a_time_of_its_own() -> None:
    """c is that of a drafted token: a third of it, for three tokens."""
    prompts = [raw(50, [a_pass(3, 1), a_pass(3, 2)] * 10, [1.0] * 50)] * 2
    assert "c_step" not in summary(prompts)
    together = summary(prompts, at_once=True)
    assert together["c_step"] == pytest.approx(0.3) and together["c"] == pytest.approx(0.1)


def test_the_kept_blockwise_record_is_predicted_by_position() -> None:
    """As many tokens per pass as measured, from the acceptance by position and the texts' lengths. Eq. 1 says 1.14
    times as many; texts without an end would have more, too."""
    record = store.read(newest(draft="blockwise", temperature=0, gamma=3).file)
    measured = record["summary"]["tokens_per_pass"]
    asked = acceptance_when_asked(record["prompts"], 3)
    accepted = asked.accepted
    assert asked.tokens == pytest.approx(measured, rel=0.02)
    assert theory.expected_tokens(record["summary"]["alpha"], 3) > 1.1 * measured
    assert theory.expected_tokens_by_position(accepted) > 1.01 * measured


def test_a_pass_without_room_for_gamma_is_predicted_with_the_room_it_had() -> None:
    """γ = 15 and 16 new tokens, as prompt lookup has them: no match in the first pass, then all others from one. A
    renewal, for which every pass begins alike, predicts fewer tokens per pass."""
    passes = [a_pass(0, 0, draft_s=0.1), a_pass(14, 14)]
    s = summary([raw(16, passes, [0.8] * 16) for _ in range(12)], gamma=15, falls_with_position=True)
    assert s["tokens_per_pass"] == 8 and s["prediction"] == "by position"
    assert s["tokens_per_pass_predicted"] == pytest.approx(8)
    assert tokens_by_position([0.5, *[1.0] * 13, 0.0], [16]) < 0.9 * 8


def test_a_token_that_was_not_proposed_though_there_was_room_was_not_accepted() -> None:
    """Two passes of five propose nothing; before the last token there is room for one; and the last pass, which drafts
    the end of the text, saves nothing."""
    passes = [a_pass(2, 2), a_pass(0, 0), a_pass(0, 0), a_pass(2, 0), a_pass(2, 1, emitted=1)]
    assert acceptance_when_asked([raw(7, passes, [])], 2).accepted == [0.25, 1.0]
    assert acceptance_when_asked([raw(9, [*passes[:4], a_pass(2, 2)], [])], 2).accepted == [0.4, 1.0]


def test_passes_are_summed_as_they_were() -> None:
    """A look-up that proposes in one pass of ten. v is of all passes, as what a pass costs is."""
    passes = [a_pass(3, 0, verify_s=1.6)] + [a_pass(0, 0, verify_s=1.0, draft_s=0.0)] * 9
    s = summary([raw(10, passes, [0.0] * 10)] * 2, falls_with_position=True)
    assert s["verify_cost"] == pytest.approx((1.6 + 9) / 10)
    assert s["checking_per_pass"] == pytest.approx((1.6 + 9) / 10)
    assert s["drafted_per_pass"] * s["c"] == pytest.approx(s["drafting_per_pass"])
    spent = s["drafting_per_pass"] + s["checking_per_pass"] + s["accepting_per_pass"]
    assert s["tokens_per_pass"] / spent == pytest.approx(s["speedup_measured"])
    assert s["operations"] == pytest.approx((3 * 1.1 + 10) / 10)
    assert s["operations_predicted"] == pytest.approx(s["operations"])


def test_the_interval_of_a_speedup_holds_that_steps_vary() -> None:
    """Twenty prompts whose times are alike in all, though a step in ten took ten times as long: resampling prompts
    alone would give an interval of no width."""
    prompts = [raw(10, [a_pass(3, 1)] * 5, [1.0] * 10) for _ in range(20)]
    for prompt in prompts:
        prompt["baseline"].steps_s = [0.5] * 9 + [5.5]
    s = summary(prompts)
    assert s["speedup_low"] < 0.9 * s["speedup_measured"] and s["speedup_high"] > 1.1 * s["speedup_measured"]


def test_measured_speedup_is_seconds_per_token_over_seconds_per_token() -> None:
    s = summary()
    spent = sum(p["speculative"].decode_s for p in PROMPTS)
    assert s["speedup_measured"] == pytest.approx(11 / spent)
    assert s["speedup_low"] <= s["speedup_measured"] <= s["speedup_high"]
    assert s["speedup_end_to_end"] == pytest.approx((11 + 4) / (spent + 5))
    longer = [{**PROMPTS[0], "speculative": replace(PROMPTS[0]["speculative"], tokens=[5] * 12)}]
    assert summary(longer, greedy=False)["speedup_measured"] == pytest.approx(
        2 * 6 / PROMPTS[0]["speculative"].decode_s
    )


def test_acceptance_by_position_counts_only_positions_that_were_reached() -> None:
    rows = acceptance_by_position([p for prompt in PROMPTS for p in prompt["speculative"].passes])
    assert rows == [
        {"position": 1, "reached": 5, "accepted": 4},
        {"position": 2, "reached": 3, "accepted": 2},
        {"position": 3, "reached": 2, "accepted": 1},
    ]


def test_what_was_drafted_after_an_accepted_end_of_text_was_not_reached() -> None:
    """Six draft tokens, of which the second ends the completion: the third was never tested. And in a kept record, of
    whose texts some end inside a proposal."""
    rows = acceptance_by_position([a_pass(6, 2, emitted=2), a_pass(6, 1)])
    assert [(row["reached"], row["accepted"]) for row in rows] == [(2, 2), (2, 1), (0, 0), (0, 0), (0, 0), (0, 0)]
    prompts = store.read(newest(draft="bigram", temperature=0, gamma=7).file)["prompts"]
    passes = [p for prompt in prompts for p in prompt["speculative"].passes]
    assert any(p.emitted == p.accepted < p.drafted for p in passes)
    for row in acceptance_by_position(passes):
        place = row["position"]
        assert row["reached"] == sum(p.drafted >= place <= min(p.accepted + 1, p.emitted) for p in passes)
        assert row["accepted"] == sum(p.accepted >= place for p in passes)


def test_no_speed_for_a_text_that_is_not_the_targets() -> None:
    wrong = Difference(1, margin=3.0, noise=0.01, is_rounding=False)
    s = summary([{**PROMPTS[0], "difference": wrong}, PROMPTS[1]])
    assert not s["lossless"]
    assert s["identical"] == 0.5
    for key in ("speedup_measured", "speedup_low", "speedup_high", "speedup_end_to_end"):
        assert s[key] is None
    tie = replace(wrong, margin=0.001, is_rounding=True)
    assert summary([{**PROMPTS[0], "difference": tie}, PROMPTS[1]])["speedup_measured"] is not None


def test_one_prompt_has_no_interval() -> None:
    s = summary(PROMPTS[:1])
    assert s["alpha_low"] is None and s["speedup_low"] is None


def test_v_of_passes_with_parents_counts_them_all() -> None:
    """v is the mean of all passes, whatever they drafted."""
    passes = [a_pass(3, 1, verify_s=9.0), a_pass(5, 1, verify_s=2.0), a_pass(5, 1, verify_s=2.0)]
    for one, parents in zip(passes, ([-1, 0, -1], [-1, 0, -1, 2, -1], [-1, 0, -1, 2, -1]), strict=True):
        one.parents, one.path = parents, [0]
    v = verify_cost([raw(6, passes, [1.0] * 6)])
    assert v.value == pytest.approx(13 / 3)


def test_first_difference_and_its_margin() -> None:
    model = EagerModel(network("t5", 4), 40, frozenset({1}))
    prompt = Prompt((5, 9, 12, 1), (0,))
    assert first_difference(model, prompt, [4, 5], [4, 5]) is None
    found = first_difference(model, prompt, [4, 5, 6], [4, 7, 6])
    assert found is not None and found.position == 1
    assert not found.is_rounding  # random tokens are no near tie
    assert found.noise < 1e-3
    longer = first_difference(model, prompt, [4, 5], [4, 5, 6])
    assert longer is not None and longer.position == 2
    assert decided(0, margin=0.0, noise=0.0).is_rounding


def test_ratios_of_totals() -> None:
    columns = [(1, 2, 3, 4), (3, 2, 1, 4)]
    assert over_rows(columns, ratio).value == 1.0
    assert over_rows(columns, ratio_of_ratios).value == pytest.approx((4 / 4) / (4 / 8))
    first = over_rows(np.arange(20).reshape(10, 2) + 1, ratio)
    assert first == over_rows(np.arange(20).reshape(10, 2) + 1, ratio)
    assert first.low <= first.value <= first.high


@pytest.mark.statistical
@pytest.mark.parametrize(("prompts", "least"), [(10, 0.84), (40, 0.90)])
def test_the_intervals_cover_the_truth(prompts: int, least: float) -> None:
    """Correlated tokens within a prompt, 400 samples. The percentile method falls short of 95% with few prompts; the
    stated floors hold with a false alarm for fewer than one seed in 1,000."""
    generator = np.random.default_rng(5)
    covered = 0
    for _ in range(400):
        rates = generator.beta(6, 3, size=prompts)  # each prompt has its own acceptance; the truth is 2/3
        lengths = generator.integers(10, 40, size=prompts)
        hits = generator.binomial(lengths, rates)
        interval = over_rows(np.stack([hits, lengths], 1), ratio)
        covered += interval.low <= 2 / 3 <= interval.high
    assert covered / 400 >= least


@pytest.mark.statistical
def test_measured_tokens_per_pass_follow_equation_one_where_acceptance_is_independent() -> None:
    """With one table row the beta of every position is the same, as Eq. 1 assumes; 5 standard errors."""
    row = torch.tensor([0.5, 0.3, 0.2, 0.0])
    other = torch.tensor([0.2, 0.3, 0.5, 0.0])
    target, draft = ToyModel(row.expand(4, 4, 4)), ModelDraft(ToyModel(other.expand(4, 4, 4)), VOCABULARY)
    trace = speculative(
        target, draft, PROMPT,
        gamma=4, sampling=Sampling(1.0), max_new_tokens=6000, generator=torch.Generator().manual_seed(2),
    )  # fmt: skip
    emitted = np.array([p.emitted for p in trace.passes[:-2]])
    error = emitted.std() / len(emitted) ** 0.5
    assert emitted.mean() == pytest.approx(theory.expected_tokens(0.7, 4), abs=5 * error)


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(1.0), Sampling(0.8, top_k=2)])
def test_many_drafts_in_chunks_are_each_alone_and_whole(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    far = ModelDraft(EagerModel(network("gpt2", 3, layers=1), 40, frozenset()), 40)
    target = EagerModel(network("gpt2", 4), 40, frozenset())
    self_draft = ModelDraft(target, 40)
    uniform = UniformDraft(40, torch.device("cpu"))
    prompt, text = Prompt((), (3, 7, 9)), [5, 8, 8, 30, 2, 17, 9]
    rules = {f"{lenience:g}": lenient(lenience, sampling) for lenience in (1.0, 0.5)}
    whole = agreements(target, [far, self_draft, uniform], prompt, text, sampling, rules)
    monkeypatch.setattr("specbench.analysis.acceptance.agreement.CHUNK", 3)
    parts = agreements(target, [far, self_draft, uniform], prompt, text, sampling, rules)
    for a, b in zip(whole, parts, strict=True):
        assert a.beta == pytest.approx(b.beta, abs=1e-5)
        assert a.ratio == pytest.approx(b.ratio, rel=1e-4, abs=1e-4)
        assert a.under["1"] == pytest.approx(a.beta)
        assert all(more >= plain - 1e-6 for more, plain in zip(a.under["0.5"], a.beta, strict=True))
    assert whole[0].beta == pytest.approx(agreements(target, [far], prompt, text, sampling)[0].beta, abs=1e-5)
    assert whole[1].beta == pytest.approx([1.0] * 7, abs=1e-4)


def test_no_distribution_outlives_its_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory bound that the module states: rows alive at a time do not grow with the text."""
    monkeypatch.setattr("specbench.analysis.acceptance.agreement.CHUNK", 16)
    seen: list[int] = []

    def counted(logits: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append(logits.shape[0])
        return standardise(logits, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("specbench.analysis.acceptance.agreement.standardise", counted)
    monkeypatch.setattr("specbench.methods.model.draft.standardise", counted)
    agreements(TARGET, [DRAFT, DRAFT], PROMPT, [1, 2] * 200, Sampling(1.0))
    assert max(seen) == 16 and sum(seen) == 3 * 400


def both(index: int, slow: float, gain: float, alpha: float, generator: np.random.Generator) -> dict:  # type: ignore[type-arg]
    """A prompt whose own difficulty stretches the times of both ways alike."""
    tokens = int(generator.integers(10, 40))
    betas = (generator.random(tokens) < alpha).astype(float).tolist()
    own = np.random.default_rng(index).lognormal(0, 0.8) * tokens * slow
    spent = own / gain * generator.normal(1, 0.05)
    return {
        "index": index, "prompt": f"p{index}", "prompt_tokens": 3, "beta": betas,
        "baseline": Trace([5] * tokens, 0.0, own),
        "speculative": Trace([5] * tokens, 0.0, spent, passes=[a_pass(1, 1)] * (tokens // 2)),
    }  # fmt: skip


def test_runs_are_compared_over_the_prompts_they_share() -> None:
    generator = np.random.default_rng(0)
    a = [both(i, 1.0, 2.0, 0.8, generator) for i in range(30)]
    b = [both(i, 3.0, 1.6, 0.7, generator) for i in range(10, 50)]
    pairs = shared(a, b)
    assert [one["index"] for one, _ in pairs] == list(range(10, 30))
    assert shared(a, [{**one, "prompt": "other"} for one in b]) == []
    found = compare(pairs)
    assert found.prompts == 20
    assert found.speedup.value == pytest.approx(1.25, rel=0.05)
    assert found.speedup.low > 1  # told apart, though times spread by a factor of five over prompts
    assert found.alpha.low <= found.alpha.value <= found.alpha.high
    same = compare(shared(a, a))
    assert same.speedup.low == same.speedup.high == 1 and same.alpha.value == 0
    assert same.faster.value == same.tokens_per_pass.value == 1


@pytest.mark.statistical
def test_paired_intervals_cover_the_truth() -> None:
    """The truth is 1.25 and 0.1; 200 samples of 30 prompts; a false alarm for fewer than one seed in 1,000."""
    generator = np.random.default_rng(8)
    covered = np.zeros(2)
    for _ in range(200):
        pairs = [(both(i, 1, 2.0, 0.8, generator), both(i, 1, 1.6, 0.7, generator)) for i in range(30)]
        found = compare(pairs)
        covered += (
            found.speedup.low <= 1.25 <= found.speedup.high,
            found.alpha.low <= 0.1 <= found.alpha.high,
        )
    assert (covered / 200 >= 0.87).all()
