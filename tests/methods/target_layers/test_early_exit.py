"""Early exit: the target's first layers draft over the target's own cache, and completions equal the target's."""

from functools import cache
from typing import Any

import pytest
import torch

from specbench.analysis.acceptance.agreement import agreements
from specbench.engine.capture.static import StaticModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.network_parts import Part, decoder_layers, reduced, return_states
from specbench.engine.session import Prompt
from specbench.methods.target_layers.draft import EarlyExitDraft
from specbench.sampling import Sampling, standardise
from tests.support import chi
from tests.support.captured import graphs
from tests.support.decode import autoregressive, speculative
from tests.support.networks import network
from tests.support.prompts import prompts
from tests.support.toy import EOS, VOCABULARY

KINDS = ["t5", "t5-v1_1", "gpt2", "llama", "mistral"]
LAYERS = 3
SIZE = 40
GREEDY = Sampling(0.0)


@cache
def target_of(kind: str) -> EagerModel:
    return EagerModel(network(kind, 4, layers=LAYERS), SIZE, frozenset({1}))


def texts(kind: str, draft: EarlyExitDraft, gamma: int, tokens: int = 20) -> list[tuple[list[int], list[int]]]:
    """The target's own text and ours, a prompt each."""
    found = []
    for prompt in prompts(kind):
        told: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": tokens, "generator": torch.Generator()}
        own = autoregressive(target_of(kind), prompt, **told).tokens
        found.append((own, speculative(target_of(kind), draft, prompt, gamma=gamma, **told).tokens))
    return found


@pytest.mark.covering(most=1)
@pytest.mark.parametrize("layers", range(1, LAYERS + 1))
@pytest.mark.parametrize("kind", KINDS)
def test_the_greedy_text_is_the_targets_own(kind: str, layers: int) -> None:
    draft = EarlyExitDraft(target_of(kind), layers)
    for gamma in range(1, 9):
        assert all(own == ours for own, ours in texts(kind, draft, gamma))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
@pytest.mark.parametrize("engine", [EagerModel, StaticModel])
def test_it_drafts_on_a_target_whose_states_another_draft_reads(kind: str, engine: Any) -> None:
    """EAGLE-3 reads the states after each of several layers, of which a part of the target has only the first."""
    own = network(kind, 4, layers=LAYERS)
    width = return_states(own, "target", (1, 3))
    target = engine(own, SIZE, frozenset({1}))
    target.state_width, target.tap_width, target.states_of_prompt = 3 * width, 2 * width, True
    ours, plain = target.start(prompts(kind)[0]), target_of(kind).start(prompts(kind)[0])
    for tokens in ([5, 9], [7]):
        read, wanted = (one.shallow(1).extend(tokens) for one in (ours, plain))
        assert torch.allclose(read[:, :SIZE], wanted[:, :SIZE], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_all_layers_are_the_target_itself(kind: str) -> None:
    draft = EarlyExitDraft(target_of(kind), LAYERS)
    for prompt in prompts(kind):
        for sampling in (GREEDY, Sampling(1.0)):
            trace = speculative(
                target_of(kind), draft, prompt,
                gamma=4, sampling=sampling, max_new_tokens=20, generator=torch.Generator().manual_seed(1),
            )  # fmt: skip
            assert all(a_pass.accepted == a_pass.drafted for a_pass in trace.passes)
            beta = agreements(target_of(kind), [draft], prompt, trace.tokens, sampling)[0].beta
            assert beta == pytest.approx([1.0] * len(trace.tokens), abs=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_copied(kind: str) -> None:
    whole = target_of(kind).network
    early = reduced(whole, Part(2))
    own = {id(weight) for weight in whole.parameters()}
    assert all(id(weight) in own for weight in early.parameters())
    assert (decoder_layers(whole), decoder_layers(early)) == (LAYERS, 2)
    assert target_of(kind).shallow(2).operations < target_of(kind).operations


@pytest.mark.parametrize("kind", KINDS)
def test_the_source_is_encoded_once_and_the_cache_is_the_targets(kind: str) -> None:
    target, prompt = EagerModel(target_of(kind).network, SIZE, frozenset()), prompts(kind)[0]
    encoded = []
    if kind.startswith("t5"):
        handle = target.network.get_encoder().register_forward_hook(lambda *_: encoded.append(1))
    read = []
    watched = [block.register_forward_hook(lambda *_, at=at: read.append(at)) for at, block in enumerate(blocks(kind))]
    try:
        speculative(
            target, EarlyExitDraft(target, 1), prompt,
            gamma=3, sampling=GREEDY, max_new_tokens=4, generator=torch.Generator(),
        )  # fmt: skip
    finally:
        for hook in watched:
            hook.remove()
        if kind.startswith("t5"):
            handle.remove()
    assert len(encoded) == (1 if kind.startswith("t5") else 0)
    started = [] if kind.startswith("t5") else [0, 1, 2]  # the prompt, read once
    assert read[: len(started) + 6] == [*started, 0, 0, 0, 0, 1, 2]  # three drafted with layer 0; one check with all


def blocks(kind: str) -> Any:
    decoder = target_of(kind).network.get_decoder()
    return next(module for module in decoder.children() if isinstance(module, torch.nn.ModuleList))


@pytest.mark.parametrize("kind", ["t5", "gpt2", "mistral"])
def test_what_is_read_ahead_leaves_no_trace(kind: str) -> None:
    """Logits after any reading ahead, of two depths in turn, are those of a session that never read ahead."""
    prompt = prompts(kind)[0]
    ours, plain = target_of(kind).start(prompt), target_of(kind).start(prompt)
    one, two = ours.shallow(1), ours.shallow(2)
    for step, fed in enumerate(([3, 4], [5], [6, 7, 8], [9])):
        one.extend([30, 31, 32][: step + 1])
        two.extend(fed)
        one.rollback(ours.length)
        exact_2V = plain.shallow(2).extend(fed)  # the first two layers alone, from a level cache
        assert torch.allclose(two.extend(fed), exact_2V, atol=1e-3)
        assert torch.allclose(ours.extend(fed), plain.extend(fed), atol=1e-3)
        assert ours.length == plain.length == one.length == two.length
        ours.rollback(ours.length - 1)
        plain.rollback(plain.length - 1)


def test_a_cache_left_dirty_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first layers keep rejected tokens: completions differ, or shapes do not fit."""
    monkeypatch.setattr(
        "specbench.engine.eager.sessions.EagerSession.drop_ahead", lambda self: setattr(self, "ahead", 0)
    )
    for kind in ("t5", "gpt2", "llama"):
        try:
            same = all(own == ours for own, ours in texts(kind, EarlyExitDraft(target_of(kind), 1), gamma=3))
        except (RuntimeError, IndexError):
            same = False
        assert not same


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_scores_are_the_distributions_it_drafts_from(kind: str) -> None:
    """By teacher forcing in two parts beside the target, and step by step."""
    target, sampling, prompt = target_of(kind), Sampling(1.0), prompts(kind)[0]
    draft, text = EarlyExitDraft(target, 2), [7, 9, 30, 4, 22, 8, 5]
    tokens, first = [*prompt.prefix, *text], len(prompt.prefix)
    session = target.start(prompt)
    scoring = draft.start_on(session, prompt, sampling)
    parts = []
    for start, stop in ((first, first + 4), (first + 4, len(tokens))):
        session.extend(tokens[session.length : stop - 1])
        parts.append(scoring.score(tokens[:stop], start))
    alone = draft.start(prompt, sampling).score(tokens, first)
    stepping = target.start(prompt).shallow(2)
    rows = [
        standardise(stepping.extend(tokens[stepping.length : at]), sampling, SIZE)[-1:]
        for at in range(first, len(tokens))
    ]
    assert torch.allclose(torch.cat(parts), torch.cat(rows), atol=1e-4)
    assert torch.allclose(alone, torch.cat(rows), atol=1e-4)


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize(("kind", "gamma"), [("t5", 2), ("gpt2", 3), ("llama", 1)])
def test_sampled_texts_have_the_targets_distribution(kind: str, gamma: int) -> None:
    target = EagerModel(network(kind, 6, layers=2, width=16), VOCABULARY, frozenset({EOS}))
    prompt = Prompt((5, 9, 1), (0,)) if kind == "t5" else Prompt((), (5,))
    sampling = Sampling(1.5)
    draft = EarlyExitDraft(target, 1)
    p_value, rejected = chi.speculative_p_value(target, draft, prompt, gamma, sampling, 3, 1200)
    assert p_value > chi.ALARM
    assert rejected > 200


def test_a_session_that_went_back_is_not_left_behind() -> None:
    session = target_of("gpt2").start(prompts("gpt2")[0])
    shallow = session.shallow(1)
    shallow.rollback(1)
    with pytest.raises(AssertionError, match="did not read again"):
        session.extend([5])


@pytest.mark.full
@pytest.mark.parametrize(("kind", "engine"), [("t5", "static"), ("gpt2", "static"), ("llama", "cudagraph")])
def test_engines_write_the_same_text(kind: str, engine: str) -> None:
    """The first layers' program works on the whole one's buffers, and the weights are not laid out twice."""
    own = network(kind, 4, layers=LAYERS)
    ends = frozenset({1})
    made = StaticModel(own, SIZE, ends) if engine == "static" else graphs(own, SIZE, ends)
    draft = EarlyExitDraft(made, 2)
    places = {weight.untyped_storage().data_ptr() for weight in own.parameters()}
    assert places == {weight.untyped_storage().data_ptr() for weight in made.network.parameters()}
    parts = made.shallow(2).program.one.run.__self__  # the captured module of the first layers
    constants = [tensor for tensor in parts.buffers() if tensor.numel() > 1000]
    assert all(tensor.untyped_storage().data_ptr() in places for tensor in constants)
    for prompt in prompts(kind):
        told: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 70, "generator": torch.Generator()}
        text = autoregressive(target_of(kind), prompt, **told).tokens
        for gamma in (1, 4):
            assert speculative(made, draft, prompt, gamma=gamma, **told).tokens == text
    beta = agreements(made, [draft], prompt, text, GREEDY)[0].beta
    assert beta == agreements(target_of(kind), [EarlyExitDraft(target_of(kind), 2)], prompt, text, GREEDY)[0].beta
