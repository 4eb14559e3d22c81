"""Medusa's and Hydra's heads as drafts: completions equal the target's, each token is tested with its own q, and
what is drafted beside a cache is what plain loops over uncached states draft."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specbench.algorithm.tree_draft import TreeDraft
from specbench.analysis.acceptance.agreement import agreements
from specbench.analysis.acceptance.ranks import RankReader
from specbench.analysis.forecast import tree_passes, walk
from specbench.analysis.forecast.positions import accepted_by_position
from specbench.analysis.forecast.predict import ratios_ahead
from specbench.engine.capture.static import StaticModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.saved_heads import SavedHeads, fingerprint
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.methods.hydra.network import HydraHeads
from specbench.methods.medusa.draft import MedusaHeads
from specbench.sampling import Sampling
from specbench.theory.trees import ByConfidence, TreeShape
from tests.support import chi
from tests.support.blockwise_heads import SIZE
from tests.support.captured import fastest, graphs
from tests.support.decode import autoregressive, speculative
from tests.support.later_heads import HEADS, WIDTH, made, random_heads
from tests.support.networks import network
from tests.support.prompts import prompts
from tests.support.toy import EOS, VOCABULARY

KINDS, FAMILIES = ["medusa", "hydra"], ["t5", "gpt2"]
GREEDY = Sampling(0.0)
SHAPE = TreeShape.of_widths([3, 2, 1])


@pytest.mark.covering(most=1)
@pytest.mark.parametrize("engine", [EagerModel, StaticModel, fastest, graphs])
@pytest.mark.parametrize("family", ["t5", "gpt2", "llama"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_greedy_text_is_the_targets_own(kind: str, family: str, engine: Any) -> None:
    """As chains and as trees."""
    plain = EagerModel(network(family, 4), SIZE, frozenset({1}))
    target, draft = made(kind, family, engine)
    trees = [
        TreeDraft(draft, plan, "distinct", target.eos_ids) for plan in (SHAPE, ByConfidence(size=12, depth=3, top=4))
    ]
    for prompt in prompts(family):
        told: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 16, "generator": torch.Generator()}
        own = autoregressive(plain, prompt, **told).tokens
        for gamma in (1, 3, 6):
            trace = speculative(target, draft, prompt, gamma=gamma, **told)
            assert trace.tokens == own and all(a_pass.drafted <= min(gamma, HEADS) for a_pass in trace.passes)
        for tree in trees:
            trace = speculative(target, tree, prompt, gamma=tree.plan.depth, **told)
            assert trace.tokens == own and sum(a_pass.drafted for a_pass in trace.passes) > 0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_drafted_beside_a_cache_is_what_an_uncached_reading_gives(kind: str, family: str) -> None:
    """Each proposal of decoding, from states of one reading of the whole text without a cache: head k from the state
    of the token before the newest, Hydra's with the tokens drafted before."""
    target, draft = made(kind, family)
    prompt = prompts(family)[0]
    trace = speculative(
        target, draft, prompt, gamma=HEADS, sampling=GREEDY, max_new_tokens=12, generator=torch.Generator()
    )
    tokens = [*prompt.prefix, *trace.tokens]
    inputs = {"decoder_input_ids": torch.tensor([tokens])} if family == "t5" else {}
    embed = target.network.get_input_embeddings()
    with torch.no_grad():
        states_LD = target.network(input_ids=torch.tensor([prompt.source or tokens]), **inputs).logits[0, :, -WIDTH:]
    at, compared = len(prompt.prefix), 0
    for a_pass in trace.passes:
        if at >= 2:
            state_1D, read = states_LD[at - 2 : at - 1], [tokens[at - 1]]
            for head, token in enumerate(a_pass.tokens):
                if kind == "medusa":
                    logits_V = draft.heads.logits(state_1D, slice(None), target.project)[head, 0]
                else:
                    narrowed = draft.heads.narrowed(embed(torch.tensor([read])))
                    logits_V = draft.heads.logits(state_1D, narrowed, target.project)[0]
                assert token == int(logits_V[:SIZE].argmax())
                read.append(token)
                compared += 1
        at += a_pass.emitted
    assert compared > 10


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_scores_further_ahead_are_those_of_the_tokens_that_are_drafted(
    kind: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the tokens drafted before are those of the text; in one part, and in parts of 3 tokens."""
    target, draft = made(kind, family)
    prompt, sampling, text = prompts(family)[0], Sampling(1.0), [7, 9, 30, 4, 22, 8, 5]
    tokens, first = [*prompt.prefix, *text], len(prompt.prefix)
    ahead = list(draft.start(prompt, sampling).score_ahead(tokens, first, 9))
    assert len(ahead) == HEADS
    drafting = draft.start(prompt, sampling)
    for at in range(first, len(tokens)):
        after = drafting.after_text(tokens[:at], HEADS)
        for place in range(min(HEADS, len(tokens) - at)):
            row = ahead[place][at - first + place]
            if after.ranked(1) == [()]:
                assert not row.any()
            else:
                assert torch.allclose(row, after._q()[0], atol=1e-4)
                after = drafting.after_nodes([tokens[at + place]], [place - 1])
    (whole,) = agreements(target, [draft], prompt, text, sampling, ahead=9)
    monkeypatch.setattr("specbench.analysis.acceptance.agreement.CHUNK", 3)
    (parts,) = agreements(target, [draft], prompt, text, sampling, ahead=9)
    for one, other in zip([whole, *whole.ahead], [parts, *parts.ahead], strict=True):
        assert one.beta == pytest.approx(other.beta, abs=1e-4) and one.silent == other.silent


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_counted_passes_are_those_of_decoding(kind: str, family: str) -> None:
    """Exact at T = 0."""
    target, draft = made(kind, family, size=VOCABULARY, seed=6, end=EOS)
    for begin in range(0, VOCABULARY - 1, 2):
        prompt = Prompt((5, 9, begin + 2, 1), (0,)) if family == "t5" else Prompt((), (0, begin))
        trace = speculative(
            target, draft, prompt, gamma=3, sampling=GREEDY, max_new_tokens=24, generator=torch.Generator()
        )
        (text,) = agreements(target, [draft], prompt, trace.tokens, GREEDY, ahead=3)
        assert walk(text.ratio, 3, 24, text.silent, ahead=ratios_ahead(text)).passes.sum() == len(trace.passes)
        # Acceptance by position, with a proposal begun at each token: those of fresh sessions.
        counts, tokens, first = np.zeros((3, 2)), [*prompt.prefix, *trace.tokens], len(prompt.prefix)
        for at in range(first, len(tokens)):
            drafted = draft.start(prompt, GREEDY).propose(tokens[:at], 3, torch.Generator()).tokens
            for place, token in enumerate(drafted[: len(tokens) - at]):
                counts[place] += 1, token == tokens[at + place]
                if token != tokens[at + place]:
                    break
        assert accepted_by_position(text, 3).tolist() == counts.tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_counted_passes_of_trees_are_those_of_decoding(kind: str, family: str) -> None:
    """Exact at T = 0, from the ranks at each level. Those of Medusa's first head would give other counts."""
    target, draft = made(kind, family, size=VOCABULARY, seed=6, end=EOS)
    tree, differs = TreeDraft(draft, SHAPE, "fixed", target.eos_ids), False
    for begin in range(VOCABULARY - 1):
        prompt = Prompt((5, 9, begin + 2, 1), (0,)) if family == "t5" else Prompt((), (0, begin))
        trace = speculative(
            target, tree, prompt, gamma=3, sampling=GREEDY, max_new_tokens=24, generator=torch.Generator()
        )
        reader = RankReader(GREEDY, torch.Generator(), levels=3)
        agreements(target, [draft], prompt, trace.tokens, GREEDY, ahead=3, readers=[reader])
        given = reader.found.given_for("fixed")
        assert tree_passes(given, SHAPE, 24).sum() == len(trace.passes)
        differs |= tree_passes(given[:1], SHAPE, 24).sum() != len(trace.passes)
    assert differs or kind == "hydra"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_hydra_head_sees_its_path_and_a_medusa_head_does_not(family: str) -> None:
    for kind in KINDS:
        _, draft = made(kind, family)
        prompt = prompts(family)[0]
        session = draft.start(prompt, Sampling(1.0))
        session.after_text([*prompt.prefix, 7, 9], HEADS)
        rows = session.after_nodes([3, 4, 3], [-1, -1, -1])._q()
        assert torch.equal(rows[0], rows[2]) and torch.allclose(rows[0], rows[1]) == (kind == "medusa")


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize(("family", "tree"), [("t5", False), ("gpt2", False), ("t5", True), ("gpt2", True)])
@pytest.mark.parametrize("kind", KINDS)
def test_sampled_texts_have_the_targets_distribution(kind: str, family: str, tree: bool) -> None:
    target, draft = made(kind, family, size=VOCABULARY, seed=6, end=EOS)
    if tree:
        draft = TreeDraft(draft, SHAPE, "distinct", target.eos_ids)
    prompt, sampling = Prompt((5, 9, 1) if family == "t5" else (), (0,)), Sampling(2.0)
    p_value, rejected = chi.speculative_p_value(target, draft, prompt, 3, sampling, 4, 600)
    assert p_value > chi.ALARM
    assert rejected > 50


@pytest.mark.parametrize("kind", KINDS)
def test_heads_are_kept_with_their_target_and_refused_for_another(kind: str, tmp_path: Path) -> None:
    own, heads = network("t5", 4), random_heads(kind)
    heads.save(tmp_path, "mine", fingerprint(own))
    load = type(heads).load
    again = load(tmp_path, own, "draft")
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(again.parameters(), heads.parameters(), strict=True))
    with pytest.raises(UserError, match="were trained on mine, and this target's weights are others"):
        load(tmp_path, network("t5", 5), "draft")
    other: type[SavedHeads] = HydraHeads if kind == "medusa" else MedusaHeads
    with pytest.raises(UserError, match=f"no {other.KIND} heads are in this folder"):
        other.load(tmp_path, own, "draft")
