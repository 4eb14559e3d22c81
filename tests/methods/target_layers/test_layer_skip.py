"""Layer skipping: the target without some sublayers drafts over the target's own cache; the text is the target's."""

from functools import cache
from typing import Any

import pytest
import torch

from specbench.algorithm.tree_draft import TreeDraft
from specbench.analysis.acceptance.agreement import agreements
from specbench.choose.skips import Texts, search
from specbench.engine.capture.static import StaticModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.network_parts import part_without, reduced, sublayers
from specbench.engine.session import Prompt
from specbench.methods.target_layers.draft import EarlyExitDraft, LayerSkipDraft
from specbench.sampling import Sampling, standardise
from specbench.theory.trees import TreeShape
from tests.support import architectures, chi
from tests.support.captured import graphs
from tests.support.decode import autoregressive, speculative
from tests.support.networks import network
from tests.support.prompts import prompts
from tests.support.toy import EOS, VOCABULARY

KINDS = ["t5", "gpt2", "llama", "mistral", "opt"]
LAYERS, SIZE = 3, 40
GREEDY = Sampling(0.0)
SETS = [["attn1"], ["mlp0", "attn2"], ["attn1", "mlp1", "mlp2"], ["layer1"]]


@cache
def target_of(kind: str) -> EagerModel:
    made = architectures.network if kind == "opt" else network
    return EagerModel(made(kind, 4, layers=LAYERS), SIZE, frozenset({1}))


def blocks(target: EagerModel) -> Any:
    return next(module for module in target.network.get_decoder().children() if isinstance(module, torch.nn.ModuleList))


def greedy(target: EagerModel, draft: Any, prompt: Prompt, gamma: int, tokens: int = 20) -> list[int]:
    return speculative(
        target, draft, prompt, gamma=gamma, sampling=GREEDY, max_new_tokens=tokens, generator=torch.Generator()
    ).tokens  # fmt: skip


def own(kind: str, prompt: Prompt, tokens: int = 20) -> list[int]:
    return autoregressive(
        target_of(kind), prompt, sampling=GREEDY, max_new_tokens=tokens, generator=torch.Generator()
    ).tokens


@pytest.mark.covering
@pytest.mark.parametrize("skip", SETS, ids=",".join)
@pytest.mark.parametrize("kind", KINDS)
def test_the_greedy_text_is_the_targets_own(kind: str, skip: list[str]) -> None:
    draft = LayerSkipDraft(target_of(kind), skip)
    for prompt in prompts(kind):
        for gamma in (1, 2, 5):
            assert greedy(target_of(kind), draft, prompt, gamma) == own(kind, prompt)


@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
def test_a_skipped_sublayer_adds_nothing(kind: str) -> None:
    """Against the whole network with the outputs of these sublayers set to what adds nothing."""
    target, prompt = target_of(kind), prompts(kind)[0]
    block = blocks(target)
    attention, mlp = {
        "t5": (lambda b: b.layer[0].SelfAttention, lambda b: b.layer[-1].DenseReluDense),
        "gpt2": (lambda b: b.attn, lambda b: b.mlp),
        "llama": (lambda b: b.self_attn, lambda b: b.mlp),
    }[kind]

    def nothing(module: Any, args: Any, output: Any) -> Any:
        return (torch.zeros_like(output[0]), *output[1:]) if isinstance(output, tuple) else torch.zeros_like(output)

    tokens = [7, 9, 30, 4]
    watched = [m.register_forward_hook(nothing) for m in (attention(block[1]), mlp(block[2]))]
    try:
        expected = target.start(prompt).extend(tokens)
    finally:
        for hook in watched:
            hook.remove()
    model = EagerModel(
        reduced(target.network, part_without(LAYERS, ["attn1", "mlp2"], sublayers(target.network))), SIZE, frozenset()
    )
    assert torch.allclose(model.start(prompt).extend(tokens), expected, atol=1e-5)
    assert model.operations < target.operations


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_whole_layers_at_the_end_are_an_early_exit(kind: str) -> None:
    target = target_of(kind)
    skip, early = LayerSkipDraft(target, ["layer2"]), EarlyExitDraft(target, 2)
    assert skip.part == early.part and target.shallow(*skip.part) is target.shallow(2)
    assert LayerSkipDraft(target, ["attn2", *(["cross2"] if kind == "t5" else []), "mlp2"]).part == early.part
    for prompt in prompts(kind):
        text = own(kind, prompt)
        skipped, exited = (agreements(target, [draft], prompt, text, Sampling(1.0))[0].beta for draft in (skip, early))
        assert skipped == pytest.approx(exited, abs=1e-5)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_scores_are_the_distributions_it_drafts_from_and_leave_the_target_alone(kind: str) -> None:
    """Over the target's own keys and values, in two parts, beside a session that continues unaffected."""
    target, sampling, prompt = target_of(kind), Sampling(1.0), prompts(kind)[0]
    draft, text = LayerSkipDraft(target, ["attn1", "mlp0"]), [7, 9, 30, 4, 22, 8, 5]
    tokens, first = [*prompt.prefix, *text], len(prompt.prefix)
    session, plain = target.start(prompt), target.start(prompt)
    scoring = draft.start_on(session, prompt, sampling)
    parts = []
    for start, stop in ((first, first + 4), (first + 4, len(tokens))):
        fed = tokens[session.length : stop - 1]
        assert torch.allclose(session.extend(fed), plain.extend(fed), atol=1e-5)
        parts.append(scoring.score(tokens[:stop], start))
    rows = []
    for end in range(first, len(tokens)):
        drafting = target.start(prompt)
        drafting.extend(tokens[drafting.length : end - 1]) if drafting.length < end - 1 else None
        part = drafting.shallow(*draft.part)
        rows.append(standardise(part.extend(tokens[end - 1 : end]), sampling, SIZE))
    assert torch.allclose(torch.cat(parts), torch.cat(rows), atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize(("kind", "engine"), [("t5", "static"), ("gpt2", "static"), ("llama", "cudagraph")])
def test_engines_write_the_same_text(kind: str, engine: str) -> None:
    network_, ends = network(kind, 4, layers=LAYERS), frozenset({1})
    made = StaticModel(network_, SIZE, ends) if engine == "static" else graphs(network_, SIZE, ends)
    draft = LayerSkipDraft(made, ["attn1", "mlp0"])
    for prompt in prompts(kind):
        text = own(kind, prompt, 70)
        for gamma in (1, 4):
            assert greedy(made, draft, prompt, gamma, 70) == text
    beta = agreements(made, [draft], prompt, text, GREEDY)[0].beta
    assert (
        beta
        == agreements(target_of(kind), [LayerSkipDraft(target_of(kind), ["attn1", "mlp0"])], prompt, text, GREEDY)[
            0
        ].beta
    )


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_a_tree_of_it(kind: str) -> None:
    draft = LayerSkipDraft(target_of(kind), ["attn1", "mlp2"])
    tree = TreeDraft(draft, TreeShape.of_widths([2, 2]), "distinct", frozenset({1}))
    for prompt in prompts(kind):
        assert greedy(target_of(kind), tree, prompt, 2) == own(kind, prompt)


def test_a_cache_left_dirty_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the remaining sublayers read of a rejected proposal is kept: texts differ, or shapes do not fit."""
    dropping = "specbench.engine.eager.sessions.EagerSession.drop_ahead"
    monkeypatch.setattr(dropping, lambda self: setattr(self, "ahead", 0))
    for kind in ("t5", "gpt2", "llama"):
        try:
            draft = LayerSkipDraft(target_of(kind), ["attn1", "mlp2"])
            same = all(greedy(target_of(kind), draft, prompt, 3) == own(kind, prompt) for prompt in prompts(kind))
        except (RuntimeError, IndexError):
            same = False
        assert not same


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_sampled_texts_have_the_targets_distribution(kind: str) -> None:
    """One false alarm in 10,000 seeds."""
    target = EagerModel(network(kind, 6, layers=2, width=16), VOCABULARY, frozenset({EOS}))
    prompt = Prompt((5, 9, 1), (0,)) if kind == "t5" else Prompt((), (5,))
    p_value, rejected = chi.speculative_p_value(
        target, LayerSkipDraft(target, ["attn1", "mlp0"]), prompt, 2, Sampling(1.5), 3, 1200
    )  # fmt: skip
    assert p_value > chi.ALARM and rejected > 200


WRONG = {
    "attn0": "attn0 cannot be skipped",
    "mlp3": "mlp3: the target has 3 decoder layers, 0 to 2",
    "cross1": "cross1: a layer of the target has attn, mlp",
    "head1": "head1 is not a sublayer; give attnN, mlpN, layerN",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_skipped_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=WRONG[name].replace("(", r"\(")):
        LayerSkipDraft(target_of("gpt2"), ["mlp1", name])


def test_the_search_finds_sublayers_that_do_nothing_and_keeps_to_its_budget() -> None:
    """In a target whose layer 1 writes nothing to the residual stream, skipping that costs no agreement."""
    dull = network("gpt2", 4, layers=LAYERS)
    for module in (
        blocks(EagerModel(dull, SIZE, frozenset()))[1].attn.c_proj,
        blocks(EagerModel(dull, SIZE, frozenset()))[1].mlp.c_proj,
    ):
        torch.nn.init.zeros_(module.weight)
        torch.nn.init.zeros_(module.bias)
    target = EagerModel(dull, SIZE, frozenset({1}))
    texts = [(prompt, [7, 9, 30, 4, 22, 8]) for prompt in prompts("gpt2")]
    with torch.inference_mode():
        read = Texts(target, texts, Sampling(1.0))
        both = read.value(["attn1", "mlp1"])
        found = search(read, 9)  # 5 sets of one sublayer, then 4 of two
        short = search(read, 3)
    assert both.alpha == pytest.approx(1.0, abs=1e-5) and both.c < 1
    assert set(found.best.names) == {"attn1", "mlp1"} and (found.tried, found.tokens) == (9, 12)
    assert short.tried == 3 and len(short.best.names) == 1
