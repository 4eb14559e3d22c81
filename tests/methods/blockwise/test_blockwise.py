"""Blockwise heads: they draft from the target's own last state, a pass is one run of the target, exactly."""

from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.analysis.acceptance.agreement import agreements
from specbench.analysis.forecast import walk
from specbench.analysis.forecast.predict import ratios_ahead
from specbench.engine.capture.static import StaticModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.network_parts import return_states
from specbench.engine.saved_heads import fingerprint
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.methods.blockwise.draft import BlockwiseHeads
from specbench.sampling import Sampling, standardise
from tests.support import chi
from tests.support.blockwise_heads import SIZE, WIDTH, K, made, random_heads
from tests.support.decode import autoregressive, speculative
from tests.support.networks import network
from tests.support.prompts import prompts
from tests.support.toy import EOS, VOCABULARY

KINDS = ["t5", "t5-v1_1", "gpt2", "llama"]
GREEDY = Sampling(0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_greedy_text_is_the_targets_own(kind: str) -> None:
    plain = EagerModel(network(kind, 4), SIZE, frozenset({1}))
    target, draft = made(kind)
    drafted = 0
    for prompt in prompts(kind):
        told: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 16, "generator": torch.Generator()}
        own = autoregressive(plain, prompt, **told).tokens
        assert autoregressive(target, prompt, **told).tokens == own
        for gamma in range(1, 9):
            trace = speculative(target, draft, prompt, gamma=gamma, **told)
            assert trace.tokens == own
            assert all(a_pass.drafted <= min(gamma, K - 1) for a_pass in trace.passes)
            drafted += sum(a_pass.drafted for a_pass in trace.passes)
    assert drafted > 50


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_a_pass_is_one_run_of_the_target_and_its_states_are_the_next_proposals(kind: str) -> None:
    target, draft = made(kind)
    prompt = prompts(kind)[0]
    runs: list[int] = []
    hook = target.network.get_decoder().register_forward_hook(lambda *_: runs.append(1))
    try:
        trace = speculative(
            target, draft, prompt, gamma=4, sampling=GREEDY, max_new_tokens=12, generator=torch.Generator()
        )
    finally:
        hook.remove()
    assert len(runs) == len(trace.passes) + (0 if kind == "t5" else 1)  # the prompt of a decoder-only model
    assert (trace.passes[0].drafted == 0) == (kind == "t5")  # no state before the first token
    # The proposals, from states of one uncached reading of the whole text.
    tokens = [*prompt.prefix, *trace.tokens]
    inputs = {"decoder_input_ids": torch.tensor([tokens])} if kind == "t5" else {}
    with torch.no_grad():
        logits_LV = target.network(input_ids=torch.tensor([prompt.source or tokens]), **inputs).logits[0]
        states_LD = logits_LV[:, -WIDTH:]
        for_head_KLV = target.project(draft.heads(states_LD))[..., :SIZE]
    at = len(prompt.prefix)
    for a_pass in trace.passes:
        if at >= 2:
            expected = for_head_KLV[:, at - 2].argmax(-1).tolist()
            assert a_pass.tokens == expected[: len(a_pass.tokens)]
        at += a_pass.emitted


@pytest.mark.full
def test_every_engine_hands_over_the_same_states() -> None:
    target, _ = made("t5")
    static, draft = made("t5", StaticModel)
    prompt = prompts("t5")[0]
    ours, theirs = static.start(prompt), target.start(prompt)
    for fed in ([0, 5, 6], [7], [8, 9]):
        ours.extend(fed)
        theirs.extend(fed)
        length = ours.length
        assert torch.allclose(ours.states(length - 1, length), theirs.states(length - 1, length), atol=1e-4)
    assert ours.states(0, 2) is None  # not in the last run
    told: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 12, "generator": torch.Generator()}
    own = autoregressive(target, prompt, **told).tokens
    assert speculative(static, draft, prompt, gamma=3, **told).tokens == own


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_scores_are_those_of_the_first_drafted_token(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the target in parts of 3 tokens; alone in one; and as drafted."""
    monkeypatch.setattr("specbench.analysis.acceptance.agreement.CHUNK", 3)
    target, draft = made(kind)
    prompt, sampling, text = prompts(kind)[0], Sampling(1.0), [7, 9, 30, 4, 22, 8, 5]
    tokens, first = [*prompt.prefix, *text], len(prompt.prefix)
    alone = draft.start(prompt, sampling).score(tokens, first)
    session = target.start(prompt)
    p_LV = standardise(session.extend(tokens[session.length : -1]), sampling, SIZE)
    beta = agreements(target, [draft], prompt, text, sampling)[0].beta
    assert beta == pytest.approx(p_LV.minimum(alone).sum(-1).tolist(), abs=1e-4)
    assert (beta[0] == 0) == (kind == "t5")
    drafting = draft.start(prompt, sampling)
    for at in range(first, len(tokens)):
        q_GV = drafting.propose(tokens[:at], 1, torch.Generator()).q_GV
        if q_GV is not None and len(q_GV):
            assert torch.allclose(q_GV[0], alone[at - first], atol=1e-4)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_scores_further_ahead_are_those_of_the_tokens_that_are_drafted(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one part, in parts of 3 tokens, and as drafted."""
    target, draft = made(kind)
    prompt, sampling, text = prompts(kind)[0], Sampling(1.0), [7, 9, 30, 4, 22, 8, 5]
    tokens, first = [*prompt.prefix, *text], len(prompt.prefix)
    ahead = list(draft.start(prompt, sampling).score_ahead(tokens, first, 9))
    assert len(ahead) == K - 1
    drafting = draft.start(prompt, sampling)
    for at in range(first, len(tokens)):
        q_GV = drafting.propose(tokens[:at], K - 1, torch.Generator()).q_GV
        for place in range(min(K - 1, len(tokens) - at)):
            row = ahead[place][at - first + place]
            if q_GV is None:
                assert not row.any()
            elif place < len(q_GV):
                assert torch.allclose(row, q_GV[place], atol=1e-4)
    (whole,) = agreements(target, [draft], prompt, text, sampling, ahead=9)
    monkeypatch.setattr("specbench.analysis.acceptance.agreement.CHUNK", 3)
    (parts,) = agreements(target, [draft], prompt, text, sampling, ahead=9)
    assert len(whole.ahead) == len(parts.ahead) == K - 2
    for one, other in zip([whole, *whole.ahead], [parts, *parts.ahead], strict=True):
        assert one.beta == pytest.approx(other.beta, abs=1e-4) and one.silent == other.silent


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_counted_passes_are_those_of_decoding(kind: str) -> None:
    """Exact at T = 0; the first token's agreement alone gives a different number."""
    target, draft = made(kind, size=VOCABULARY, seed=6, end=EOS)
    counted, from_first, decoded = 0.0, 0.0, 0
    for begin in range(VOCABULARY - 1):
        prompt = Prompt((5, 9, begin + 2, 1), (0,)) if kind == "t5" else Prompt((), (0, begin))
        for gamma in (2, 4):
            trace = speculative(
                target, draft, prompt, gamma=gamma, sampling=GREEDY, max_new_tokens=24, generator=torch.Generator()
            )
            (along,) = agreements(target, [draft], prompt, trace.tokens, GREEDY, ahead=gamma)
            counts = walk(along.ratio, gamma, 24, along.silent, ahead=ratios_ahead(along)).passes
            assert counts.sum() == len(trace.passes)
            counted, decoded = counted + counts.sum(), decoded + len(trace.passes)
            from_first += walk(along.ratio, gamma, 24, along.silent).passes.sum()
    assert from_first != counted == decoded


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize(("kind", "gamma"), [("t5", 2), ("gpt2", 3)])
def test_sampled_texts_have_the_targets_distribution(kind: str, gamma: int) -> None:
    target, draft = made(kind, size=VOCABULARY, seed=6, end=EOS)
    prompt, sampling = Prompt((5, 9, 1) if kind == "t5" else (), (0,)), Sampling(2.0)
    p_value, rejected = chi.speculative_p_value(target, draft, prompt, gamma, sampling, 4, 800)
    assert p_value > chi.ALARM
    assert 100 < rejected < 790


def test_heads_are_kept_with_their_target_and_refused_for_another(tmp_path: Path) -> None:
    own = network("t5", 4)
    heads = random_heads(WIDTH)
    heads.save(tmp_path, "mine", fingerprint(own))
    again = BlockwiseHeads.load(tmp_path, own.to(torch.bfloat16), "draft")  # rounding is not another target
    assert torch.equal(again.out_KHD, heads.out_KHD.to(torch.bfloat16))
    with pytest.raises(UserError, match="were trained on mine, and this target's weights are others"):
        BlockwiseHeads.load(tmp_path, network("t5", 5), "draft")
    with pytest.raises(UserError, match="draft.path=.*missing: no blockwise heads are in this folder"):
        BlockwiseHeads.load(tmp_path / "missing", own, "draft")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="no blockwise heads are in this folder"):
        BlockwiseHeads.load(tmp_path, own, "draft")


def test_heads_begin_as_the_targets_own() -> None:
    states_ND = torch.randn(3, WIDTH)
    assert torch.equal(BlockwiseHeads(K, WIDTH, 16)(states_ND), states_ND.expand(K - 1, 3, WIDTH))


def test_a_network_that_changes_its_logits_after_the_head_is_refused() -> None:
    own = network("llama", 4)
    own.config.final_logit_softcapping = 30.0
    with pytest.raises(UserError, match="target: LlamaForCausalLM changes its logits after its head"):
        return_states(own, "target")
