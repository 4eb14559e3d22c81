"""EAGLE and EAGLE-3: they draft from the target's own features, the text is the target's, and nothing of an earlier
proposal is left in the layer's cache."""

from typing import Any

import pytest
import torch

from specbench.algorithm.tree_draft import TreeDraft
from specbench.analysis.acceptance.agreement import agreements
from specbench.analysis.forecast import walk
from specbench.analysis.forecast.predict import ratios_ahead
from specbench.engine.cache_names import cache_of
from specbench.engine.capture.static import StaticModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.methods.decoder_layer import Source
from specbench.methods.eagle.draft import EagleDraft
from specbench.methods.eagle.entries import EagleEntries
from specbench.sampling import Sampling, standardise
from specbench.theory.trees import ByConfidence, Plan, TreeShape
from tests.support import captured, chi
from tests.support.decode import autoregressive, speculative
from tests.support.eagle_layer import SIZE, TAPS, made
from tests.support.networks import network
from tests.support.prompts import prompts
from tests.support.toy import EOS, VOCABULARY

KINDS = ["t5", "t5-v1_1", "gpt2", "llama"]
GREEDY = Sampling(0.0)
PLANS: dict[str, Plan | None] = {
    "chain": None,
    "tree": TreeShape.of_widths([2, 1]),
    "dynamic": ByConfidence(4, 2, 2),
}
ENGINES: dict[str, Any] = {
    "eager": EagerModel, "static": StaticModel, "native": captured.fastest, "cudagraph": captured.graphs,
}  # fmt: skip


@pytest.mark.covering(most=1)
@pytest.mark.parametrize("taps", [(), TAPS])
@pytest.mark.parametrize("kind", KINDS)
def test_the_greedy_text_is_the_targets_own(kind: str, taps: tuple[int, ...]) -> None:
    plain = EagerModel(network(kind, 4), SIZE, frozenset({1}))
    target, draft = made(kind, taps)
    drafted = 0
    for prompt in prompts(kind):
        told: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 16, "generator": torch.Generator()}
        own = autoregressive(plain, prompt, **told).tokens
        assert autoregressive(target, prompt, **told).tokens == own
        for gamma in (1, 2, 3, 5):
            trace = speculative(target, draft, prompt, gamma=gamma, **told)
            assert trace.tokens == own
            drafted += sum(a_pass.drafted for a_pass in trace.passes)
    assert drafted > 50


@pytest.mark.full
@pytest.mark.parametrize("taps", [(), TAPS])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_every_engine_drafts_the_same_and_from_scratch_too(kind: str, engine: str, taps: tuple[int, ...]) -> None:
    """In every pass the proposal is that of a session which reads the whole text anew: no feature is one place off, and
    none that was predicted is left where the target's own should be."""
    _, from_eager = made(kind, taps)
    target, draft = made(kind, taps, ENGINES[engine])
    prompt = prompts(kind)[0]
    trace = speculative(target, draft, prompt, gamma=3, sampling=GREEDY, max_new_tokens=14, generator=torch.Generator())
    tokens, at = [*prompt.prefix, *trace.tokens], len(prompt.prefix)
    for a_pass in trace.passes:
        room = min(3, len(prompt.prefix) + 14 - at - 1)
        anew = from_eager.start(prompt, GREEDY).propose(tokens[:at], room, torch.Generator())
        assert a_pass.tokens == anew.tokens
        at += a_pass.emitted
    assert any(0 < a_pass.accepted < a_pass.drafted for a_pass in trace.passes) or len(trace.passes) > 4


def off_by_one(cache: EagleEntries, features_LF: torch.Tensor, *others: Any) -> torch.Tensor:
    return read(cache, torch.cat([features_LF[:1], features_LF[:-1]]), *others)


def not_read_again(cache: EagleEntries, length: int) -> None:
    """Entries of accepted tokens keep their drafted values."""
    cache.session.length = min(cache.length + cache.session.nodes, max(0, length))
    cache.forget()


read = EagleEntries.read


@pytest.mark.parametrize(("method", "fault"), [("read", off_by_one), ("rollback", not_read_again)])
def test_planted_faults_change_what_is_drafted(method: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is the target's all the same: only a comparison of the proposals shows them."""
    target, draft = made("gpt2", size=VOCABULARY, seed=6, end=EOS)  # few tokens: some are accepted at random
    prompt = Prompt((), (0, 1, 2, 1, 0))
    target.eos_ids = frozenset()
    monkeypatch.setattr(EagleEntries, method, fault)
    trace = speculative(target, draft, prompt, gamma=3, sampling=GREEDY, max_new_tokens=30, generator=torch.Generator())
    monkeypatch.undo()
    tokens, at, rows = [*prompt.prefix, *trace.tokens], len(prompt.prefix), []
    for a_pass in trace.passes:
        rows.append((a_pass.tokens, tokens[:at], a_pass.drafted))
        at += a_pass.emitted
    assert sum(a_pass.accepted for a_pass in trace.passes) > 0
    same = all(
        drafted == draft.start(prompt, GREEDY).propose(before, count, torch.Generator()).tokens
        for drafted, before, count in rows
    )
    assert not same


@pytest.mark.parametrize("taps", [(), TAPS])
@pytest.mark.parametrize("kind", KINDS)
def test_cached_rows_are_those_computed_from_scratch(kind: str, taps: tuple[int, ...]) -> None:
    """As drafted in a text that grows and is rolled back, as scored along it in one go, and by plain code."""
    target, draft = made(kind, taps)
    prompt, sampling, text = prompts(kind)[0], Sampling(1.0), [7, 9, 30, 4, 22, 8, 5]
    tokens, first = [*prompt.prefix, *text], len(prompt.prefix)
    ahead = list(draft.start(prompt, sampling).score_ahead(tokens, first, 3))
    session = target.start(prompt)
    drafting = draft.start_on(session, prompt, sampling)
    for at in range(first, len(tokens)):
        session.extend([*tokens[session.length : at], 11, 12])  # read with a proposal, which is rejected
        session.rollback(at)
        drafting.rollback(at)
        proposal = drafting.propose(tokens[: at + 1], 3, torch.Generator().manual_seed(at))
        if at + 1 < len(tokens):
            assert torch.allclose(proposal.q_GV[0], ahead[0][at + 1 - first], atol=1e-4)
            assert torch.allclose(proposal.q_GV[0], plain(draft, target, prompt, tokens[: at + 1]), atol=1e-4)
        # Further tokens of this proposal are those that a fresh session scores along the proposal itself.
        along = [*tokens[: at + 1], *proposal.tokens]
        rows = list(draft.start(prompt, sampling).score_ahead(along, at + 1, 3))
        for place in range(1, len(proposal.tokens)):
            assert torch.allclose(proposal.q_GV[place], rows[place][place], atol=1e-4)


def plain(draft: EagleDraft, target: EagerModel, prompt: Prompt, tokens: list[int]) -> torch.Tensor:
    """q [V] after `tokens`, in a few lines: all features in one run, the layer over all entries."""
    eagle, inputs = draft.eagle, {}
    if prompt.source:
        inputs = {"input_ids": torch.tensor([prompt.source]), "decoder_input_ids": torch.tensor([tokens])}
    else:
        inputs = {"input_ids": torch.tensor([tokens])}
    with torch.no_grad():
        output = target.network(**inputs)
        width = eagle.shape.layer.width
        columns = output.logits[0, :-1, 64:]
        features = columns[:, width:] if eagle.shape.taps else columns[:, :width]
        source = None
        if prompt.source:
            last = cache_of(output).cross_attention_cache.layers[-1]
            source = Source(last.keys, last.values)
        count = len(tokens) - 1
        distance = torch.arange(count)[:, None] - torch.arange(count)
        bias = eagle.layer.bias_by_distance(distance)
        mask = torch.zeros(count, count).masked_fill(distance < 0, -torch.inf) + (0 if bias is None else bias)

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            shared = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
            return (query @ key.mT * eagle.shape.layer.scale + mask).softmax(-1) @ value

        states = eagle(
            eagle.fuse(features[None]), eagle.embed(torch.tensor([tokens[1:]]), 1), torch.arange(count)[None], attend,
            source,
        )  # fmt: skip
    return standardise(eagle.logits(states[0, -1:]), Sampling(1.0), SIZE)[0]


@pytest.mark.parametrize("taps", [(), TAPS])
@pytest.mark.parametrize("kind", KINDS)
def test_cached_rows_of_tree_nodes_are_those_of_their_paths(kind: str, taps: tuple[int, ...]) -> None:
    """Each node's row, read with its siblings beside it, is that of a fresh session along its path."""
    _, draft = made(kind, taps)
    prompt, sampling = prompts(kind)[0], Sampling(1.0)
    text, tokens, parents = [*prompt.prefix, 7, 9, 30], [4, 22, 8, 8, 5], [-1, -1, 0, 1, 2]
    session = draft.start(prompt, sampling)
    session.after_text(text, 3)
    rows = [*session.after_nodes(tokens[:2], parents[:2])._q(), *session.after_nodes(tokens[2:4], parents[2:4])._q()]
    rows += session.after_nodes(tokens[4:], parents[4:])._q()
    for node, row_V in enumerate(rows):
        path, at = [tokens[node]], parents[node]
        while at >= 0:
            path, at = [tokens[at], *path], parents[at]
        along = list(draft.start(prompt, sampling).score_ahead([*text, *path, 0], len(text), len(path) + 1))
        assert torch.allclose(row_V, along[len(path)][len(path)], atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("taps", [(), TAPS])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_trees_write_the_targets_text(kind: str, engine: str, taps: tuple[int, ...]) -> None:
    """EAGLE-2's dynamic tree, and one of a fixed shape; a tree of one child a node drafts what the chain does."""
    target, draft = made(kind, taps, ENGINES[engine])
    prompt = prompts(kind)[0]
    told: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 10, "generator": torch.Generator()}
    own = autoregressive(target, prompt, **told).tokens
    for plan in (ByConfidence(8, 3, 3), TreeShape.of_widths([2, 2, 1])):
        tree = TreeDraft(draft, plan, "fixed", target.eos_ids)
        trace = speculative(target, tree, prompt, gamma=plan.depth, **told)
        assert trace.tokens == own and any(a_pass.parents for a_pass in trace.passes)
    thin = TreeDraft(draft, TreeShape.of_widths([1, 1, 1]), "fixed", target.eos_ids)
    chain = speculative(target, draft, prompt, gamma=3, **told)
    assert [one.tokens for one in speculative(target, thin, prompt, gamma=3, **told).passes] == [
        one.tokens for one in chain.passes
    ]


@pytest.mark.parametrize(("kind", "taps"), [("t5", ()), ("gpt2", TAPS)])
def test_counted_passes_are_those_of_decoding(kind: str, taps: tuple[int, ...]) -> None:
    """Exact at T = 0, from the agreement of each token further ahead along the text."""
    target, draft = made(kind, taps, size=VOCABULARY if not taps else SIZE, seed=6, end=EOS)
    for begin in range(2, 6):
        prompt = Prompt((5, 9, begin, 1), (0,)) if kind == "t5" else Prompt((), (4, begin))
        trace = speculative(
            target, draft, prompt, gamma=3, sampling=GREEDY, max_new_tokens=16, generator=torch.Generator()
        )
        (along,) = agreements(target, [draft], prompt, trace.tokens, GREEDY, ahead=3)
        counts = walk(along.ratio, 3, 16, along.silent, ahead=ratios_ahead(along)).passes
        assert counts.sum() == len(trace.passes)


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("tree", PLANS)
@pytest.mark.parametrize(("kind", "taps"), [("t5", ()), ("gpt2", ()), ("t5", TAPS), ("gpt2", TAPS)])
def test_sampled_texts_have_the_targets_distribution(kind: str, taps: tuple[int, ...], tree: str) -> None:
    """A chain, a tree of draws, and EAGLE-2's tree."""
    target, draft = made(kind, taps, size=VOCABULARY, seed=6, end=EOS)
    prompt, sampling, plan = Prompt((5, 9, 1) if kind == "t5" else (), (0,)), Sampling(2.0), PLANS[tree]
    drafting = draft if plan is None else TreeDraft(draft, plan, "distinct", target.eos_ids)
    p_value, rejected = chi.speculative_p_value(target, drafting, prompt, 2, sampling, 3, 300)
    assert p_value > chi.ALARM
    assert 30 < rejected < 300
