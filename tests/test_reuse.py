"""Verification that reuses the states of a draft inside the target: the same logits and completions, fewer rows.

`test_early_exit.py` samples completions with and without reuse.
"""

from collections.abc import Callable
from typing import Any

import architectures
import pytest
import torch
from captured import graphs
from decode import autoregressive, speculative
from networks import network

from specbench.algorithm.growing import TreeDraft
from specbench.engine.capture.static import NativeModel, StaticModel
from specbench.engine.choice import objection_to_reuse
from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.shallow import Reusable
from specbench.engine.eager.split import Entry
from specbench.engine.session import Part, Prompt, without
from specbench.methods.cascade.draft import CascadeDraft
from specbench.methods.early_exit.draft import EarlyExitDraft
from specbench.methods.horizontal.draft import HorizontalDraft
from specbench.methods.layer_skip.draft import LayerSkipDraft
from specbench.methods.lookup.draft import LookupDraft
from specbench.sampling import Sampling
from specbench.theory.trees import FixedShape, Shape

KINDS = ["t5", "t5-v1_1", "gpt2", "llama", "mistral", "opt"]
LAYERS, SIZE, ENDS = 4, 40, frozenset({1})
GREEDY = Sampling(0.0)
SOURCES = [(5, 9, 12, 30, 1), (17, 3, 22, 1)]
NETWORKS = {kind: (architectures.network if kind == "opt" else network)(kind, 4, layers=LAYERS) for kind in KINDS}
TARGETS = {kind: EagerModel(made, SIZE, ENDS) for kind, made in NETWORKS.items()}
PARTS = {"exit": Part(2), "skip": Part(LAYERS, frozenset({"attn2", "mlp3"})), "both": Part(3, frozenset({"mlp1"}))}
NEAR = 2e-4  # of the largest logit: these T5s amplify rounding


def prompts(kind: str) -> list[Prompt]:
    return [Prompt(source, (0,)) if kind.startswith("t5") else Prompt((), source[:-1]) for source in SOURCES]


def greedy(target: EagerModel, draft: Any, prompt: Prompt, gamma: int, tokens: int = 20) -> list[int]:
    return speculative(
        target, draft, prompt, gamma=gamma, sampling=GREEDY, max_new_tokens=tokens, generator=torch.Generator()
    ).tokens  # fmt: skip


def own(target: EagerModel, prompt: Prompt, tokens: int = 20) -> list[int]:
    return autoregressive(target, prompt, sampling=GREEDY, max_new_tokens=tokens, generator=torch.Generator()).tokens


def farthest(model: EagerModel, kind: str, part: Part, ahead: Callable[[list[int]], list[int]]) -> float:
    """The largest difference of passes with and without reuse, of the largest logit, where `ahead` of each was read."""
    plain, ours = model.start(prompts(kind)[0]), model.start(prompts(kind)[0])
    found = []
    for fed in ([3, 4, 7], [5, 6], [8], [9, 10, 11, 12], [13, 14, 15, 16, 17]):
        for token in ahead(fed):
            ours.shallow(*part, reuse=True).extend([token])
        exact, reused = plain.extend(fed), ours.extend(fed)
        found.append(float((exact - reused).abs().max() / exact.abs().max()))
        for session in (plain, ours):
            session.rollback(session.length - 1)  # the last token was rejected
    return max(found)


@pytest.fixture
def reused(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each read that reuses states, how many."""
    found: list[int] = []
    states = Reusable.of

    def watched(self: Any, tokens: Any, ahead: int) -> Any:
        if (rows := states(self, tokens, ahead)) is not None:
            found.append(len(rows))
        return rows

    monkeypatch.setattr(Reusable, "of", watched)
    return found


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_are_those_of_computing_all_again(kind: str, part: str, reused: list[int]) -> None:
    """Where all but the last token were read ahead, all of them, only the first, or other tokens."""
    ways: list[tuple[Callable[[list[int]], list[int]], list[int]]] = [
        (lambda fed: fed[:-1], [2, 1, 3, 4]),
        (lambda fed: fed, [3, 2, 1, 4, 5]),
        (lambda fed: fed[:1], [1, 1, 1, 1, 1]),
        (lambda fed: [30, *fed[1:-1]], []),
    ]
    for way, expected in ways:
        assert farthest(TARGETS[kind], kind, PARTS[part], way) < NEAR
        assert reused == expected
        reused.clear()


@pytest.mark.covering(most=1)
@pytest.mark.parametrize(("kind", "engine"), [("t5", StaticModel), ("gpt2", StaticModel), ("gpt2", NativeModel)])
def test_captured_steps_give_them_too(kind: str, engine: type[StaticModel], reused: list[int]) -> None:
    made = network(kind, 4, layers=2)
    model, plain = engine(made, SIZE, ENDS), EagerModel(made, SIZE, ENDS)
    draft = LayerSkipDraft(model, ["attn1"], reuse=True)
    assert farthest(model, kind, draft.part, lambda fed: fed[:-1]) < NEAR
    assert reused == [2, 1, 3, 4]
    reused.clear()
    for prompt in prompts(kind):
        assert greedy(model, draft, prompt, 4, 70) == own(plain, prompt, 70)  # buffers double on the way
    assert len(reused) > 10
    places = {weight.untyped_storage().data_ptr() for weight in made.parameters()}
    assert draft.operations == plain.shallow(*draft.part).operations
    for one in model.split(draft.part).models:
        assert all(weight.untyped_storage().data_ptr() in places for weight in one.network.parameters())


@pytest.mark.covering
@pytest.mark.parametrize("skip", [["layer3"], ["layer2", "layer3"], ["attn1", "mlp3"]], ids=",".join)
@pytest.mark.parametrize("kind", KINDS)
def test_the_greedy_text_is_the_targets_own(kind: str, skip: list[str], reused: list[int]) -> None:
    draft = LayerSkipDraft(TARGETS[kind], skip, reuse=True)
    for prompt in prompts(kind):
        for gamma in (1, 2, 5):
            reused.clear()
            assert greedy(TARGETS[kind], draft, prompt, gamma) == own(TARGETS[kind], prompt)
            assert 0 < max(reused) <= gamma


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_the_first_layers_read_each_token_once(kind: str) -> None:
    """Rows of each layer: three draft steps in two layers, then one row in these and four rows in the others."""
    layers = next(
        module for module in NETWORKS[kind].get_decoder().children() if isinstance(module, torch.nn.ModuleList)
    )
    read: list[tuple[int, int]] = []
    watched = [
        (layer.layer[-1].DenseReluDense if kind == "t5" else layer.mlp).register_forward_hook(
            lambda module, given, out, at=at: read.append((at, given[0].shape[1]))
        )
        for at, layer in enumerate(layers)
    ]
    target = EagerModel(NETWORKS[kind], SIZE, frozenset())
    draft = EarlyExitDraft(target, 2, reuse=True)
    session = target.start(prompts(kind)[0])
    try:
        session.extend([3])
        drafting = draft.start_on(session, prompts(kind)[0], GREEDY)
        tokens = [*prompts(kind)[0].prefix[:-1], 3, 4]
        drafted = drafting.propose(tokens, 3, torch.Generator()).tokens
        read.clear()
        session.extend([4, *drafted])
    finally:
        for hook in watched:
            hook.remove()
    assert read == [(0, 1), (1, 1), (2, 4), (3, 4)]


def test_states_of_a_rejected_token_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the states of an earlier proposal, some of it rejected, are taken for those of this one."""
    prompt, target = prompts("gpt2")[0], TARGETS["gpt2"]
    draft = EarlyExitDraft(target, 2, reuse=True)
    assert greedy(target, draft, prompt, 3) == own(target, prompt)
    states = Reusable.of

    def stale(self: Any, tokens: Any, ahead: int) -> Any:
        found = states(self, tokens, ahead)
        if found is not None:
            before, self.before = getattr(self, "before", found), found
            return before if len(before) == len(found) else found
        return None

    monkeypatch.setattr(Reusable, "of", stale)
    assert greedy(target, draft, prompt, 3) != own(target, prompt)


def test_states_are_of_the_tokens_that_are_read() -> None:
    """A rejected token's states remain nowhere: not after a rollback of the draft, nor of the target."""
    found = Reusable()
    found.add(0, [5, 6], torch.ones(2, 3))
    found.add(2, [7], torch.ones(1, 3))
    assert found.of([5, 6, 7, 8], 3) is not None and found.of([5, 6, 9, 8], 3) is None
    assert found.of([5, 6], 3) is None and found.of([5, 6, 7, 8], 2) is None
    found.crop(1)
    assert found.of([5, 6, 9], 2) is not None and found.of([5, 6, 7], 3) is None
    found.add(4, [9], torch.ones(1, 3))  # tokens between them were not read as a chain
    assert found.of([5, 6, 9], 3) is None
    found.clear()
    assert found.of([5, 6], 2) is None and found.of([5], 0) is None


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_inside_other_drafts(kind: str) -> None:
    """Of a tree nothing is reused, of a horizontal cascade what the exit drafted, inside a cascade all."""
    target, cpu = TARGETS[kind], torch.device("cpu")
    early = EarlyExitDraft(target, 2, reuse=True)
    tree = TreeDraft(early, FixedShape(Shape.of_widths([2, 2])), "distinct", ENDS)
    horizontal = HorizontalDraft([early, LookupDraft(SIZE, cpu, 2)], [2], SIZE, ENDS, cpu)
    middle = EagerModel(network(kind, 5, layers=3), SIZE, ENDS)
    cascade = CascadeDraft(middle, EarlyExitDraft(middle, 1, reuse=True), 2, SIZE)
    for prompt in prompts(kind):
        for draft in (tree, horizontal, cascade):
            assert greedy(target, draft, prompt, 4) == own(TARGETS[kind], prompt)


def test_where_nothing_is_reused() -> None:
    target = TARGETS["gpt2"]
    assert not EarlyExitDraft(target, LAYERS, reuse=True).reuse
    assert objection_to_reuse(target, Part(LAYERS)) == "no layer of the target is left"
    assert objection_to_reuse(target, without(LAYERS, ["mlp0"], ["attn", "mlp"])) is not None
    assert objection_to_reuse(target, Part(2)) is None
    handing = EagerModel(NETWORKS["gpt2"], SIZE, ENDS)
    handing.state_width = 32
    assert objection_to_reuse(handing, Part(2)) == "another draft reads the target's states"
    replayed = graphs(network("gpt2", 4, layers=3), SIZE, ENDS)
    assert "engine=cudagraph" in str(objection_to_reuse(replayed, Part(1)))
    replayed.no_split, replayed.invariant = None, True
    assert "numerics=invariant" in str(objection_to_reuse(replayed, Part(1)))
    assert greedy(replayed, EarlyExitDraft(replayed, 1, reuse=True), prompts("gpt2")[0], 3)


def test_a_network_whose_parts_are_not_the_whole_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    give = Entry.give
    monkeypatch.setattr(Entry, "give", lambda self, states_BLD: give(self, 1.01 * states_BLD))
    assert "its logits differ by" in str(objection_to_reuse(TARGETS["llama"], Part(1)))
