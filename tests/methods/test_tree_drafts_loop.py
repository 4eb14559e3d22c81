"""Trees of every kind of draft through the real loop: the law of sampled texts, and greedy identity on every engine."""

from itertools import product
from typing import Any

import pytest
import torch

from specbench.algorithm.acceptance.base import Children
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.draft import Draft
from specbench.algorithm.tree_draft import TreeDraft
from specbench.engine.capture.static import StaticModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.methods.cascade.draft import CascadeDraft
from specbench.methods.from_text import gather
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.model.draft import ModelDraft
from specbench.methods.ngram.counts import fit
from specbench.methods.ngram.draft import NgramDraft
from specbench.methods.several.draft import MergedDraft
from specbench.methods.target_layers.draft import EarlyExitDraft
from specbench.sampling import Sampling
from specbench.theory.trees import ByConfidence, Plan, TreeShape
from tests.support import chi
from tests.support.blockwise_heads import made
from tests.support.captured import graphs
from tests.support.decode import autoregressive, speculative
from tests.support.networks import network
from tests.support.toy import EOS, START, VOCABULARY, ToyModel, random_table
from tests.support.tree_drafts import CHILDREN, CPU, GREEDY, RULES, SAMPLED, drafts, found

SEEN = ToyModel(random_table(1))
LOOP = drafts(ToyModel(random_table(2)), ToyModel(random_table(3)), VOCABULARY)
RUNS: list[tuple[str, Children, str]] = [
    (name, CHILDREN[place % 2], list(RULES)[place // 2 % 2]) for place, name in enumerate([*LOOP, *reversed(LOOP)])
]


def p_value(draft: TreeDraft, target: Any, prompt: Prompt, accept: Any, sampling: Sampling = SAMPLED) -> float:
    """1,000 texts of up to 3 tokens. Below `chi.ALARM`, a false alarm for one seed in 10,000, a test fails."""
    return chi.speculative_p_value(target, draft, prompt, 2, sampling, 3, 1000, accept)[0]


@pytest.mark.covering(most=1)
@pytest.mark.statistical
@pytest.mark.parametrize(("name", "children", "rule"), RUNS)
def test_sampled_texts_have_the_targets_law(name: str, children: Children, rule: str) -> None:
    tree = TreeDraft(LOOP[name], TreeShape.of_widths([2, 2]), children, frozenset({EOS}))
    assert p_value(tree, SEEN, Prompt((1, 0, 2, 1, 3, 0, 1, 2, 2, 0), (START,)), RULES[rule]) > chi.ALARM


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("engine", [EagerModel, StaticModel])
@pytest.mark.parametrize("name", ["heads", "early exit"])
def test_sampled_texts_of_drafts_inside_the_target(name: str, engine: type[EagerModel]) -> None:
    target, heads = made("gpt2", engine, size=VOCABULARY, seed=6, end=EOS)
    draft = heads if name == "heads" else EarlyExitDraft(target, 1)
    tree = TreeDraft(draft, TreeShape.of_widths([2, 2]), "distinct", frozenset({EOS}))
    assert p_value(tree, target, Prompt((), (0,)), accept_exact, Sampling(2.0)) > chi.ALARM


ENGINES: dict[str, Any] = {"eager": EagerModel, "static": StaticModel, "cudagraph": graphs}
PLANS: dict[str, Plan] = {
    "widths": TreeShape.of_widths([3, 2, 1, 1]), "dynamic": ByConfidence(size=10, depth=4, top=3)
}  # fmt: skip
WORDS, END = 40, frozenset({1})


@pytest.mark.covering(most=1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
def test_greedy_texts_of_every_draft_are_the_targets_own(kind: str, engine: str) -> None:
    target, heads = made(kind, ENGINES[engine], size=WORDS)
    small, other = (ENGINES[engine](network(kind, seed, layers=1), WORDS, END) for seed in (2, 3))
    counts = fit(gather([(4, 7, 9, 12, 1), (4, 7, 30, 1)], 0), WORDS, 3)
    model, lookup, trigram = ModelDraft(small, WORDS), LookupDraft(WORDS, CPU, 3), NgramDraft(counts, 3, 0.75, CPU)
    every: dict[str, Draft] = {
        "lookup": lookup,
        "retrieval": found(WORDS, [(4, 7, 9, 12, 1), (4, 7, 30, 1)]),
        "heads": heads,
        "early exit": EarlyExitDraft(target, 1),
        "cascade": CascadeDraft(small, ModelDraft(other, WORDS), 3, WORDS, CPU),
        "cascade inside": CascadeDraft(small, EarlyExitDraft(small, 1), 3, WORDS, CPU),
        "merged": MergedDraft([model, trigram, lookup]),
        "merged inside": MergedDraft([heads, ModelDraft(target, WORDS), lookup]),
    }
    accepted = dict.fromkeys(every, 0)
    for source in [(5, 9, 12, 30, 1), (8, 8, 31, 14, 2, 25, 1)][: 2 if engine == "eager" else 1]:
        prompt = Prompt(source, (0,)) if kind == "t5" else Prompt((), source[:-1])
        options: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 16}
        text = autoregressive(target, prompt, generator=torch.Generator(), **options).tokens
        for (name, draft), (shape, plan) in product(every.items(), PLANS.items()):
            tree = TreeDraft(draft, plan, "distinct", END)
            trace = speculative(target, tree, prompt, gamma=plan.depth, generator=torch.Generator(), **options)
            assert trace.tokens == text, (name, shape)
            accepted[name] += sum(a_pass.accepted for a_pass in trace.passes)
    assert accepted["merged inside"] > 10 and accepted["early exit"] + accepted["heads"] > 0
