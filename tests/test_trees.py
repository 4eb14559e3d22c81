"""Token trees in the real loop: greedy identity, the law of sampled texts, and that a chain is a tree."""

import itertools
from typing import Any

import chi
import pytest
import torch
from captured import graphs
from decode import autoregressive, speculative
from networks import network
from toy import EOS, PROMPT, VOCABULARY, ToyModel, exact, random_table

from specbench.acceptance import Children, accept_block, accept_exact
from specbench.drafts import Draft, ModelDraft, NgramDraft, TreeDraft
from specbench.drafts.corpus import gather
from specbench.drafts.counts import fit
from specbench.models import Prompt
from specbench.models.eager import EagerModel
from specbench.models.static import StaticModel
from specbench.sampling import Sampling
from specbench.trees import ByConfidence, FixedShape, Plan, Shape, best_shape

KINDS = ["t5", "t5-v1_1", "gpt2", "llama", "mistral"]
ENGINES: dict[str, Any] = {"eager": EagerModel, "static": StaticModel, "cudagraph": graphs}
SIZE = 40
END = frozenset({1})
GREEDY, SAMPLED = Sampling(0.0), Sampling(1.0)
SOURCES = [(5, 9, 12, 30, 1), (17, 3, 22, 1), (8, 8, 31, 14, 2, 25, 1)]
PLANS: dict[str, Plan] = {
    "widths": FixedShape(Shape.of_widths([3, 2, 1, 1])),
    "sequoia": FixedShape(best_shape((0.5, 0.2, 0.1), 12)),
    "dynamic": ByConfidence(size=10, depth=4, top=3),
}


def prompts(kind: str) -> list[Prompt]:
    return [Prompt(source, (0,)) if kind.startswith("t5") else Prompt((), source[:-1]) for source in SOURCES]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_texts_of_every_shape_are_the_targets_own(kind: str, engine: str) -> None:
    target = ENGINES[engine](network(kind, 4), SIZE, END)
    other = ENGINES[engine](network(kind, 2, layers=1), SIZE, END)
    counts = fit(gather([(4, 7, 9, 12, 1), (4, 7, 30, 1)], 0), SIZE, 3)
    drafts: dict[str, Draft] = {
        "the target itself": ModelDraft(target, SIZE),
        "other weights": ModelDraft(other, SIZE),
        "3-gram": NgramDraft(counts, 3, 0.75, torch.device("cpu")),
    }
    for prompt in prompts(kind)[: 3 if engine == "eager" else 1]:
        own = autoregressive(target, prompt, sampling=GREEDY, max_new_tokens=20, generator=torch.Generator()).tokens
        for name, draft in drafts.items():
            for shape, plan in PLANS.items():
                trace = speculative(
                    target, TreeDraft(draft, plan, "distinct", SIZE, END), prompt,
                    gamma=plan.depth, sampling=GREEDY, max_new_tokens=20, generator=torch.Generator(),
                )  # fmt: skip
                assert trace.tokens == own, (name, shape)
                assert sum(a_pass.emitted for a_pass in trace.passes) == len(own)
                assert all(a_pass.accepted <= plan.depth for a_pass in trace.passes)
                if name == "the target itself" and shape != "dynamic":  # which may leave out the deepest node
                    assert all(a_pass.accepted == plan.depth for a_pass in trace.passes[:-1])


@pytest.mark.parametrize("children", ["fixed", "replaced", "distinct"])
@pytest.mark.parametrize("rule", [accept_exact, accept_block], ids=["exact", "traversal"])
@pytest.mark.statistical
def test_sampled_texts_of_a_tree_have_the_targets_law(children: Children, rule: Any) -> None:
    """A false alarm for one seed in 10,000 each."""
    target, draft = ToyModel(random_table(1)), ModelDraft(ToyModel(random_table(2)), VOCABULARY)
    tree = TreeDraft(draft, FixedShape(Shape.of_widths([2, 2])), children, VOCABULARY, frozenset({EOS}))

    def decode(generator: torch.Generator) -> list[int]:
        return speculative(
            target, tree, PROMPT,
            gamma=2, sampling=SAMPLED, max_new_tokens=3, generator=generator, accept=rule,
        ).tokens  # fmt: skip

    assert chi.p_value(decode, exact(target, SAMPLED, 3), 3000) > chi.ALARM


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", [accept_exact, accept_block], ids=["exact", "block"])
def test_a_chain_as_a_tree_is_algorithm_1_token_for_token(temperature: float, rule: Any) -> None:
    table = random_table(1)
    target, draft = ToyModel(table), ModelDraft(ToyModel((table + random_table(2)) / 2), VOCABULARY)
    ways: list[Children] = ["replaced", "distinct"]
    accepted = 0
    for seed, children in itertools.product(range(30), ways):
        tree = TreeDraft(draft, FixedShape(Shape.chain(4)), children, VOCABULARY, frozenset({EOS}))
        chain, ours = (
            speculative(
                target, one, PROMPT, gamma=4, sampling=Sampling(temperature), max_new_tokens=24,
                generator=torch.Generator().manual_seed(seed), accept=rule,
            )
            for one in (draft, tree)
        )  # fmt: skip
        assert ours.tokens == chain.tokens
        assert [(p.tokens, p.accepted) for p in ours.passes] == [(p.tokens, p.accepted) for p in chain.passes]
        accepted += sum(a_pass.accepted for a_pass in ours.passes)
    assert accepted > 40
