"""Several passes or steps in one C call: the same tokens and passes as one at a time, from the same random numbers."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from specbench.algorithm import decoding
from specbench.algorithm.acceptance.base import Proposal, Verification
from specbench.algorithm.acceptance.rules.block import BlockConfig
from specbench.algorithm.acceptance.rules.exact import AcceptByChance, accept_exact
from specbench.algorithm.acceptance.rules.lenient import LenientConfig
from specbench.algorithm.acceptance.rules.match import MatchConfig
from specbench.algorithm.acceptance.rules.onehot import OneHotConfig
from specbench.algorithm.acceptance.rules.top_beta import TopBetaConfig
from specbench.algorithm.acceptance.rules.typical import TypicalConfig
from specbench.algorithm.decoding import DecodingSpec
from specbench.algorithm.draft import Draft, Stateless
from specbench.algorithm.gamma import Adaptive, Constant
from specbench.engine.capture.static import FIRST_CAPACITY
from specbench.engine.native.native_model import NativeModel
from specbench.engine.native.native_sessions import NativeSession
from specbench.engine.native.passes import NativePasses
from specbench.engine.native.prefill import LoweredPrompt
from specbench.engine.native.whole import WholeReading
from specbench.engine.session import Prompt
from specbench.engine.window import Window
from specbench.kernels import is_available, rows
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.model.draft import ModelDraft, ModelDraftSession
from specbench.methods.router.config import RouterConfig
from specbench.methods.router.draft import RouterDraft
from specbench.methods.target_layers.draft import EarlyExitDraft, LayerSkipDraft
from specbench.methods.window.draft import WindowDraft
from specbench.records.passes_run import VERIFIED_IN_C
from specbench.sampling import Sampling, TokenChoice
from tests.support.native_pairs import ENDS, KINDS, autoregressive, both_ways, did, models, speculative, start

pytestmark = [
    pytest.mark.skipif(not is_available(), reason="no C compiler"),
    pytest.mark.usefixtures("captured_once"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("sampling", "gammas"), [
    *((sampling, (1, 3, 8)) for sampling in (Sampling(), Sampling(4.0))),
    *(
        pytest.param(sampling, (1, 2, 3, 5, 8, 12), marks=pytest.mark.full)
        for sampling in (Sampling(), Sampling(1.0), Sampling(4.0), Sampling(4.0, top_k=7), Sampling(4.0, top_p=0.7))
    ),
])  # fmt: skip
def test_passes_in_one_call_are_single_passes(
    kind: str, sampling: Sampling, gammas: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every gamma, end of the text and of the room, also where buffers grow within a completion."""
    emitted, ended_inside = set(), 0
    for ends, most in ((ENDS, 40), (frozenset({39}), 1), (frozenset({39}), FIRST_CAPACITY + 20)):
        target, model = models(kind, ends)
        draft = ModelDraft(model, 40)
        for gamma, seed in itertools.product(gammas, range(2)):
            found = []
            for in_calls in (True, False):
                with monkeypatch.context() as patched:
                    if not in_calls:
                        patched.setattr(NativeModel, "passes", lambda *_: None)
                    found.append(speculative(target, draft, start(kind), sampling, most, gamma, seed))
            assert did(found[0]) == did(found[1]), (ends, most, gamma, seed)
            assert all(min(one.draft_s, one.verify_s, one.accept_s) >= 0 for one in found[0].passes)
            total = sum(one.draft_s + one.verify_s + one.accept_s for one in found[0].passes)
            assert total == pytest.approx(found[0].decode_s)
            emitted |= {(one.emitted, one.drafted) for one in found[0].passes}
            ended_inside += found[0].passes[-1].emitted == found[0].passes[-1].accepted < gamma
    assert len(emitted) > 5, "no variety"
    assert ended_inside, "no accepted block ended a text"


RULES = {
    "block": BlockConfig(), "onehot": OneHotConfig(), "match": MatchConfig(), "typical": TypicalConfig(),
    "lenient": LenientConfig(), "top-beta": TopBetaConfig(),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rule", "temperature"),
    [*((rule, 4.0) for rule in RULES if rule != "top-beta"), ("lenient", 0.0), ("top-beta", 0.0), ("block", 0.0)],
)
def test_passes_by_every_rule_are_single_passes(
    kind: str, rule: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafted by a model or elsewhere: the same tokens, passes and random numbers in calls and step by step."""
    calls, accepted = [], set()
    run, verify = NativePasses.run, NativePasses.verify
    sampling = Sampling(temperature)
    verification = RULES[rule].verification(sampling)
    for ends in (ENDS, frozenset({39})):
        target, model = models(kind, ends)
        drafts: list[Draft] = [ModelDraft(model, 40), Guessing(with_q=False)]
        if temperature > 0:
            drafts.append(Guessing(with_q=rule != "onehot"))
        for draft, gamma, seed in itertools.product(drafts, (1, 4), range(3)):
            found = []
            for in_calls in (True, False):
                with monkeypatch.context() as patched:
                    if in_calls:
                        patched.setattr(NativePasses, "run", lambda *of: calls.append(1) or run(*of))
                        patched.setattr(NativePasses, "verify", lambda *of: calls.append(1) or verify(*of))
                    else:
                        patched.setattr(NativeModel, "passes", lambda *_: None)
                        patched.setattr(rows, "is_available", lambda: False)
                    before = len(calls)
                    spec = DecodingSpec(sampling, 40, verification, Constant(gamma))
                    generator = torch.Generator().manual_seed(seed)
                    found.append(decoding.speculative(target, draft, start(kind), spec, generator))
                    assert in_calls == (len(calls) > before)
            assert did(found[0]) == did(found[1]), (type(draft), gamma, seed)
            accepted |= {one.accepted for one in found[0].passes}
    assert len(accepted) > 1, "no variety"


@pytest.mark.parametrize("temperature", [0.0, 4.0])
def test_acceptance_at_random_is_at_random_at_every_temperature(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at T = 0, where the kernels compare argmax tokens. Such texts have no end."""
    target, model = models("gpt2", frozenset())
    sampling = Sampling(temperature)
    for draft, alpha in itertools.product((ModelDraft(model, 40), Guessing(with_q=False)), (0.0, 0.6, 1.0)):
        spec = DecodingSpec(sampling, 40, Verification(AcceptByChance(alpha), sampling), Constant(3))
        found = []
        for in_calls in (True, False):
            with monkeypatch.context() as patched:
                if not in_calls:
                    patched.setattr(NativeModel, "passes", lambda *_: None)
                    patched.setattr(rows, "is_available", lambda: False)
                generator = torch.Generator().manual_seed(2)
                found.append(decoding.speculative(target, draft, start("gpt2"), spec, generator))
        assert did(found[0]) == did(found[1]), (type(draft), alpha)
        shares = {one.accepted / one.drafted for one in found[0].passes[:-1]}
        assert shares == {alpha} or alpha == 0.6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(4.0, top_p=0.7)])
def test_steps_in_one_call_are_single_steps(kind: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = set()
    for ends, most in ((ENDS, 40), (frozenset({39}), 1), (frozenset({39}), FIRST_CAPACITY + 20)):
        target, _ = models(kind, ends)
        for seed in range(4):
            found = []
            for in_calls in (True, False):
                with monkeypatch.context() as patched:
                    if not in_calls:
                        patched.setattr(NativeModel, "passes", lambda *_: None)
                    found.append(autoregressive(target, start(kind), sampling, most, seed))
            assert found[0].tokens == found[1].tokens
            assert len(found[0].steps_s) == len(found[0].tokens) and min(found[0].steps_s) > 0
            assert sum(found[0].steps_s) == pytest.approx(found[0].decode_s)
            lengths.add(len(found[0].tokens))
    assert len(lengths) > 2 or sampling.temperature == 0


def test_the_completion_is_the_targets_own_whatever_runs_it() -> None:
    """Greedy, in bf16: what passes in calls emit is what steps in calls do."""
    for kind in KINDS:
        target, model = models(kind, frozenset({39}), torch.bfloat16)
        own = autoregressive(target, start(kind), Sampling(), 90).tokens
        for gamma in (1, 4, 9):
            assert speculative(target, ModelDraft(model, 40), start(kind), Sampling(), 90, gamma).tokens == own


def test_what_learns_from_passes_is_told_of_them() -> None:
    """Passes in calls would leave nothing to learn from."""
    target, model = models("t5", frozenset({39}))
    told = []

    class Learning(ModelDraftSession):
        def after_verification(self, position: int, logits_LV: torch.Tensor, rejected: bool) -> None:
            told.append((position, len(logits_LV), rejected))

    class LearningDraft(ModelDraft):
        def start(self, prompt: Prompt, sampling: Sampling) -> ModelDraftSession:
            return Learning(self.model, self.model.start(prompt), sampling, self.vocabulary_size)

    trace = speculative(target, LearningDraft(model, 40), start("t5"), Sampling(4.0), 20, 3)
    assert len(told) == len(trace.passes) and sum(count for _, count, _ in told) == len(trace.tokens)
    assert trace.tokens == speculative(target, ModelDraft(model, 40), start("t5"), Sampling(4.0), 20, 3).tokens


class Guessing(Draft, Stateless):
    """Drafts copies of the text, whatever ends are in them, with q or without."""

    operations = 0.0

    def __init__(self, with_q: bool) -> None:
        self.with_q = with_q

    def start(self, prompt: Prompt, sampling: Sampling) -> "Guessing":
        return self

    def propose(self, tokens: Any, gamma: int, generator: torch.Generator) -> Proposal:
        drafted = [*tokens, *[18, 39, 7, 15]][-gamma:] if gamma else []
        q_GV = torch.full((len(drafted), 40), 1 / 40) if self.with_q else None
        return Proposal(drafted, q_GV, asked=gamma)

    def score(self, tokens: Any, prefix_length: int) -> torch.Tensor:
        raise NotImplementedError


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("with_q", [False, True])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(4.0), Sampling(9.0, top_k=20)])
def test_what_is_drafted_elsewhere_is_verified_in_one_call(
    kind: str, with_q: bool, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as in Python, also where an end lies within the drafted tokens and gamma varies."""
    calls = within = 0
    for ends in (frozenset({39}), frozenset({15, 39})):
        target, _ = models(kind, ends)
        for gamma, seed in itertools.product((1, 4, Adaptive(0.5, {1: 1.0, 3: 1.2, 6: 1.5})), range(4)):
            decode = partial(speculative, target, Guessing(with_q), start(kind), sampling, 70, gamma, seed)
            in_calls, step_by_step, verified = both_ways(decode, monkeypatch)
            assert did(in_calls) == did(step_by_step), (ends, gamma, seed)
            calls, last = calls + verified, in_calls.passes[-1]
            within += last.emitted == last.accepted < last.drafted
    assert calls and (within or sampling.temperature == 0)


def test_passes_of_a_call_are_not_cut_again_where_no_string_ends_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    target, model = models("gpt2", frozenset({39}))
    cut = []
    monkeypatch.setattr(decoding.Text, "up_to_end", lambda text, block: cut.append(block) or block)
    trace = speculative(target, ModelDraft(model, 40), start("gpt2"), Sampling(), 40, 3)
    assert len(trace.passes) > 1 and not cut


def routed(target: NativeModel, model: NativeModel) -> Draft:
    return RouterDraft([LookupDraft(40, torch.device("cpu"), 3), ModelDraft(model, 40)], RouterConfig(least_match=1))


ON_THE_TARGET: dict[str, Callable[[NativeModel, NativeModel], Draft]] = {
    "early exit": lambda target, _: EarlyExitDraft(target, 1),
    "layer skip": lambda target, _: LayerSkipDraft(target, ["mlp1"]),
    "window": lambda target, _: WindowDraft(target, target.windowed(Window(16, 4), "draft.window")),
    "router": routed,
}


@pytest.mark.parametrize("name", ON_THE_TARGET)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(4.0)])
def test_drafts_that_use_the_targets_cache_alone_are_verified_in_one_call(
    name: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their steps are one call, too; the same as step by step, also where the buffers grow and gamma varies."""
    verified, rolled = [], []
    verify, rollout = NativePasses.verify, NativeSession.rollout
    target, model = models("gpt2", frozenset({39}))
    for gamma, seed in itertools.product((1, 4, Adaptive(0.5, {1: 1.0, 3: 1.2, 6: 1.5})), range(3)):
        found = []
        for in_calls in (True, False):
            draft = ON_THE_TARGET[name](target, model)
            with monkeypatch.context() as patched:
                if in_calls:
                    patched.setattr(NativePasses, "verify", lambda *of: verified.append(1) or verify(*of))
                    patched.setattr(NativeSession, "rollout", lambda *of: rolled.append(1) or rollout(*of))
                else:
                    patched.setattr(NativeModel, "passes", lambda *_: None)
                    patched.setattr(NativeSession, "rollout", lambda *_: None)
                found.append(speculative(target, draft, start("gpt2"), sampling, 70, gamma, seed))
        assert did(found[0]) == did(found[1]), (gamma, seed)
        assert found[0].passes_run == VERIFIED_IN_C
    assert len(verified) > 50 and len(rolled) > 50


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(4.0)])
def test_a_pass_tells_forward_passes_from_the_loop(
    kind: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs it: the parts add up to the pass, and a draft without a model has no forward passes."""
    target, model = models(kind, frozenset({39}))
    for draft, in_calls in itertools.product((ModelDraft(model, 40), Guessing(with_q=False)), (True, False)):
        with monkeypatch.context() as patched:
            if not in_calls:
                patched.setattr(NativeModel, "passes", lambda *_: None)
            passes = speculative(target, draft, start(kind), sampling, 20, 3).passes
        for one in passes:
            assert one.draft_run_s is not None and one.verify_run_s is not None and one.loop_s is not None
            assert (one.draft_run_s > 0) == (isinstance(draft, ModelDraft) and one.drafted > 0)
            assert one.draft_run_s <= one.draft_s and 0 < one.verify_run_s <= one.verify_s and one.loop_s > 0
            whole = one.draft_s + one.verify_s + one.accept_s
            assert one.draft_run_s + one.verify_run_s + one.loop_s == pytest.approx(whole)


def test_ends_and_narrow_heads_are_seen_anew() -> None:
    """Calls outlive their sessions: another end is read, and logits that lack tokens are not read past their row."""
    target, model = models("gpt2", frozenset({39}))
    draft, prompt = ModelDraft(model, 40), start("gpt2")
    whole = speculative(target, draft, prompt, Sampling(), 12, 3).tokens
    target.eos_ids = model.eos_ids = frozenset({whole[5]})
    ended = speculative(target, draft, prompt, Sampling(), 12, 3).tokens
    assert ended == whole[: whole.index(whole[5]) + 1] == autoregressive(target, prompt, Sampling(), 12).tokens
    width = target.program.one.run.run.widths[0]
    assert target.chooses(TokenChoice(Sampling(), width)) and not target.chooses(TokenChoice(Sampling(), width + 1))


def test_only_plain_chains_of_two_models_run_in_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    run = NativePasses.run
    monkeypatch.setattr(NativePasses, "run", lambda *of: calls.append(1) or run(*of))
    target, model = models("t5")
    cases: dict[str, tuple[ModelDraft, dict[str, Any], bool]] = {
        "plain": (ModelDraft(model, 40), {}, True),
        "confidence": (ModelDraft(model, 40, confidence=0.5), {}, False),
        "itself": (ModelDraft(target, 40), {}, False),
        "gamma that learns": (ModelDraft(model, 40), {"gamma": Adaptive(0.5, {1: 1.0, 2: 1.2})}, False),
        "min-p": (ModelDraft(model, 40), {"sampling": Sampling(1.0, min_p=0.1)}, False),
        "a rule of its own": (
            ModelDraft(model, 40),
            {"sampling": Sampling(1.0), "rule": lambda *of: accept_exact(*of)},
            False,
        ),
    }
    for name, (draft, options, expected) in cases.items():
        calls.clear()
        given = {"sampling": Sampling(), "gamma": 3, **options}
        speculative(target, draft, start("t5"), most=12, **given)
        assert bool(calls) is expected, name


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)])
@pytest.mark.parametrize("damaged", ["target", "draft"])
def test_damaged_weights_end_a_completion(sampling: Sampling, damaged: str) -> None:
    target, model = models("t5")
    with torch.no_grad():
        bad = (target if damaged == "target" else model).network
        bad.decoder.block[0].layer[2].DenseReluDense.wi.weight[0, 0] = float("nan")
    for one in (target, model):
        one.weights_changed()
    with pytest.raises(FloatingPointError, match="logits are not finite"):
        speculative(target, ModelDraft(model, 40), start("t5"), sampling, 12, 3)
    if damaged == "target":
        with pytest.raises(FloatingPointError, match="logits are not finite"):
            autoregressive(target, start("t5"), sampling, 12)


def test_changed_weights_are_read_wherever_they_were_looked_up() -> None:
    """T5's position biases too, which sessions look up once."""
    target, model = models("t5", frozenset({39}))
    draft, prompt = ModelDraft(model, 40), start("t5")
    before = speculative(target, draft, prompt, Sampling(4.0), 30, 4).tokens
    with torch.no_grad():
        for stack in (target.network.encoder, target.network.decoder):
            stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight.normal_(0, 30)
    target.weights_changed()
    fresh = NativeModel(target.network, 40, frozenset({39}))
    after = speculative(target, draft, prompt, Sampling(4.0), 30, 4).tokens
    assert after == speculative(fresh, draft, prompt, Sampling(4.0), 30, 4).tokens != before
    assert (
        autoregressive(target, prompt, Sampling(4.0), 30).tokens
        == autoregressive(fresh, prompt, Sampling(4.0), 30).tokens
    )


def test_a_source_is_read_in_one_program_as_torch_reads_it() -> None:
    """Into the first slots of caches, which may be longer; also without our kernels."""
    target, _ = models("t5")
    assert target.program.encode is not None
    reading = target.program.encode._run
    assert isinstance(reading, LoweredPrompt) and isinstance(reading._native, WholeReading)
    for length in (1, 2, 15, 16, 17, 33, 40, 1):
        source = torch.arange(2, 2 + length)[None] % 40
        biases = target.program.encode._biases_of(source)
        ours = [torch.full((1, heads, 48, width), 7.0) for heads, width in target.program.shapes["cross"]]
        with torch.inference_mode():
            target.program.encode.into(ours, source)
            alone = reading._native(source, *biases)
            theirs = reading._torchs(source, *biases)
        for our, own, their in zip(ours, alone, theirs, strict=True):
            assert (
                our[:, :, :length] - their
            ).abs().max() < 3e-4 * their.abs().max()  # this network amplifies rounding
            assert own.equal(our[:, :, :length]) and (our[:, :, length:] == 7).all()
