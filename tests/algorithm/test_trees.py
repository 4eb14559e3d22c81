"""Token trees in the real loop: greedy identity, the law of sampled texts, and that a chain is a tree."""

import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from specbench.algorithm.acceptance.base import Chance, Children, DraftedTree, Verdict
from specbench.algorithm.acceptance.rules.block import accept_block
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.acceptance.tree_rules import Node, WithoutReplacement
from specbench.algorithm.draft import Draft
from specbench.algorithm.tree_draft import TreeDraft
from specbench.analysis.acceptance.by_position import acceptance_by_position, of_trees
from specbench.engine.capture.static import StaticModel
from specbench.engine.eager.model import EagerModel
from specbench.methods.from_text import gather
from specbench.methods.model.draft import ModelDraft
from specbench.methods.ngram.counts import fit
from specbench.methods.ngram.draft import NgramDraft
from specbench.sampling import Sampling
from specbench.theory.best_tree import best_shape
from specbench.theory.trees import ROOT, ByConfidence, Plan, TreeShape
from tests.support import chi
from tests.support.captured import graphs
from tests.support.decode import autoregressive, speculative
from tests.support.made_passes import made_pass
from tests.support.networks import network
from tests.support.prompts import THREE, prompts
from tests.support.toy import EOS, PROMPT, VOCABULARY, ToyModel, exact, random_table

KINDS = ["t5", "t5-v1_1", "gpt2", "llama", "mistral"]
ENGINES: dict[str, Any] = {"eager": EagerModel, "static": StaticModel, "cudagraph": graphs}
SIZE = 40
END = frozenset({1})
GREEDY, SAMPLED = Sampling(0.0), Sampling(1.0)
PLANS: dict[str, Plan] = {
    "widths": TreeShape.of_widths([3, 2, 1, 1]),
    "sequoia": best_shape((0.5, 0.2, 0.1), 12),
    "dynamic": ByConfidence(size=10, depth=4, top=3),
}


# A captured step is replayed alike for every kind: one with an encoder and one without.
@pytest.mark.covering(most=1)
@pytest.mark.parametrize(
    ("kind", "engine"),
    [(kind, engine) for kind in KINDS for engine in ENGINES if engine != "cudagraph" or kind in ("t5", "llama")],
)
def test_greedy_texts_of_every_shape_are_the_targets_own(kind: str, engine: str) -> None:
    target = ENGINES[engine](network(kind, 4), SIZE, END)
    other = ENGINES[engine](network(kind, 2, layers=1), SIZE, END)
    counts = fit(gather([(4, 7, 9, 12, 1), (4, 7, 30, 1)], 0), SIZE, 3)
    drafts: dict[str, Draft] = {
        "the target itself": ModelDraft(target, SIZE),
        "other weights": ModelDraft(other, SIZE),
        "3-gram": NgramDraft(counts, 3, 0.75, torch.device("cpu")),
    }
    for prompt in prompts(kind, THREE)[: 3 if engine == "eager" else 1]:
        own = autoregressive(target, prompt, sampling=GREEDY, max_new_tokens=20, generator=torch.Generator()).tokens
        for name, draft in drafts.items():
            for shape, plan in PLANS.items():
                trace = speculative(
                    target, TreeDraft(draft, plan, "distinct", END), prompt,
                    gamma=plan.depth, sampling=GREEDY, max_new_tokens=20, generator=torch.Generator(),
                )  # fmt: skip
                assert trace.tokens == own, (name, shape)
                assert sum(a_pass.emitted for a_pass in trace.passes) == len(own)
                assert all(a_pass.accepted <= plan.depth for a_pass in trace.passes)
                if name == "the target itself" and shape != "dynamic":  # which may leave out the deepest node
                    assert all(a_pass.accepted == plan.depth for a_pass in trace.passes[:-1])


@pytest.mark.full
@pytest.mark.parametrize("children", ["fixed", "replaced", "distinct"])
@pytest.mark.parametrize("rule", [accept_exact, accept_block], ids=["exact", "traversal"])
@pytest.mark.statistical
def test_sampled_texts_of_a_tree_have_the_targets_law(children: Children, rule: Any) -> None:
    """A false alarm for one seed in 10,000 each."""
    target, draft = ToyModel(random_table(1)), ModelDraft(ToyModel(random_table(2)), VOCABULARY)
    tree = TreeDraft(draft, TreeShape.of_widths([2, 2]), children, frozenset({EOS}))

    def decode(generator: torch.Generator) -> list[int]:
        return speculative(
            target, tree, PROMPT,
            gamma=2, sampling=SAMPLED, max_new_tokens=3, generator=generator, accept=rule,
        ).tokens  # fmt: skip

    assert chi.p_value(decode, exact(target, SAMPLED, 3), 2000) > chi.ALARM


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", [accept_exact, accept_block], ids=["exact", "block"])
def test_a_chain_as_a_tree_is_algorithm_1_token_for_token(temperature: float, rule: Any) -> None:
    table = random_table(1)
    target, drafting = ToyModel(table), ToyModel((table + random_table(2)) / 2)
    # No proposal ends early: a chain draws its random numbers for all tokens asked for, a tree for those it has.
    drafting.eos_ids = frozenset()
    draft = ModelDraft(drafting, VOCABULARY)
    ways: list[Children] = ["replaced", "distinct"]
    accepted = 0
    for seed, children in itertools.product(range(30), ways):
        tree = TreeDraft(draft, TreeShape.chain(4), children, frozenset())
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


def planted(tree: TreeDraft) -> float:
    """The chance of texts at least as far from the target's law as those that `tree` gives."""
    target = ToyModel(random_table(1))

    def decode(generator: torch.Generator) -> list[int]:
        return speculative(
            target, tree, PROMPT, gamma=2, sampling=SAMPLED, max_new_tokens=3, generator=generator
        ).tokens  # fmt: skip

    return chi.p_value(decode, exact(target, SAMPLED, 3), 2000)


def toy_tree(children: Children, *widths: int) -> TreeDraft:
    """A tree of a draft that is often wrong at first, so that second children are accepted."""
    draft = ModelDraft(ToyModel(random_table(1).roll(1, -1)), VOCABULARY)
    return TreeDraft(draft, TreeShape.of_widths(widths), children, frozenset({EOS}))


@pytest.mark.full
@pytest.mark.statistical
def test_the_likeliest_tokens_tested_as_if_drawn_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def likeliest(q_LV: torch.Tensor, counts: Sequence[int], *_: Any) -> list[list[int]]:
        return [row_V.topk(count).indices.tolist() for row_V, count in zip(q_LV, counts, strict=True)]

    monkeypatch.setattr("specbench.algorithm.continuations.choose", likeliest)
    assert planted(toy_tree("distinct", 2, 2)) < chi.ALARM


@pytest.mark.statistical
def test_a_bonus_from_the_residual_of_a_rejected_sibling_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(p_NV: Any, q_NV: Any, tree: DraftedTree, chance: Chance, start: type[Node]) -> Verdict:
        path, node, above = list[int](), ROOT, p_NV[0]
        while True:
            tests = WithoutReplacement(p_NV[node + 1] if tree.children[node + 1] else above, 3)
            for child in tree.children[node + 1]:
                if chance.accepts(child, *tests.test(tree.tokens[child], q_NV[child])):
                    break
                tests.reject(tree.tokens[child], q_NV[child])
            else:
                return Verdict(path, chance.draw(tests.residual_V))
            above = p_NV[child + 1] if child == tree.children[node + 1][0] else tests.residual_V
            path.append(child)
            node = child

    monkeypatch.setattr(sys.modules["specbench.algorithm.acceptance.tree_rules"], "walk", walk)
    assert planted(toy_tree("distinct", 3)) < chi.ALARM


@pytest.mark.parametrize("plan", [TreeShape.of_widths([3, 3, 2]), ByConfidence(12, 3, 3)], ids=["fixed", "dynamic"])
def test_an_end_of_text_has_no_children(plan: Plan) -> None:
    draft = ModelDraft(ToyModel(random_table(2)), VOCABULARY)
    session = TreeDraft(draft, plan, "distinct", frozenset({EOS})).start(PROMPT, SAMPLED)
    ends = 0
    for seed in range(20):
        proposal = session.propose([0], 3, torch.Generator().manual_seed(seed))
        assert proposal.parents is not None
        ends += proposal.tokens.count(EOS)
        assert all(parent < 0 or proposal.tokens[parent] != EOS for parent in proposal.parents)
        session.select([])
        session.rollback(0)
    assert ends > 0


def test_columns_of_passes_over_trees() -> None:
    """Two children of the root, of which the second has one child: visited twice, then once."""
    base = made_pass(drafted=3, draft_s=1.0, verify_s=1.0, tokens=[5, 6, 7])
    tree = replace(base, parents=[-1, -1, 1])
    passes: Any = [
        replace(tree, accepted=2, emitted=3, path=[1, 2]),
        replace(tree, accepted=0, emitted=1, path=[]),
        replace(tree, accepted=1, emitted=1, path=[1]),  # ended with the text
    ]
    columns = of_trees(passes)
    assert (columns["nodes_per_pass"], columns["depth_per_pass"]) == (3, 2)
    assert columns["acceptance_by_rank"] == [1 / 4, 2 / 3]  # visits: root thrice, node 1 once; the end not
    assert of_trees([base]) == {}


def test_a_position_past_a_leaf_is_not_reached() -> None:
    """The first child of the root has no children: where it is accepted nothing is proposed for the second position."""
    base = made_pass(drafted=3, draft_s=1.0, verify_s=1.0, tokens=[5, 6, 7])
    tree = replace(base, parents=[-1, -1, 1])
    leaf = replace(tree, accepted=1, emitted=2, path=[0])
    rejected = replace(tree, accepted=1, emitted=2, path=[1])
    assert acceptance_by_position([leaf, rejected]) == [
        {"position": 1, "reached": 2, "accepted": 2},
        {"position": 2, "reached": 1, "accepted": 0},
    ]
