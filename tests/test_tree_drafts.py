"""Trees of every kind of draft: the law of a pass by enumeration of every draw of the draft and of the rule, through
the code that runs; greedy identity and the law of sampled texts through the real loop; what has to be caught is.
"""

import sys
from collections.abc import Sequence
from itertools import product
from typing import Any

import chi
import pytest
import torch
from branches import Branch, outcomes
from captured import graphs
from decode import autoregressive, speculative
from networks import network
from test_blockwise import made
from toy import EOS, PROMPT, START, VOCABULARY, ToyModel, exact, random_table

from specbench.acceptance import Children, Typical, Verification, accept_block, accept_exact, verify
from specbench.acceptance.tree.rounds import without
from specbench.drafts import (
    BlockwiseDraft,
    CascadeDraft,
    Draft,
    EarlyExitDraft,
    LookupDraft,
    MergedDraft,
    ModelDraft,
    NgramDraft,
    RetrievalDraft,
    TreeDraft,
    suffixes,
)
from specbench.drafts.continuations import Found
from specbench.drafts.corpus import gather
from specbench.drafts.counts import fit
from specbench.drafts.suffixes import SuffixIndex
from specbench.drafts.tree import TreeDraftSession
from specbench.models import Prompt
from specbench.models.eager import EagerModel
from specbench.models.static import StaticModel
from specbench.sampling import Sampling
from specbench.trees import ROOT, ByConfidence, FixedShape, Plan, Shape

CPU, DOUBLE = torch.device("cpu"), torch.float64
GREEDY, SAMPLED = Sampling(0.0), Sampling(1.0)
ROUNDING = 1e-12
CHILDREN: list[Children] = ["distinct", "replaced", "fixed"]
RULES = {"exact": accept_exact, "traversal": accept_block}

# Enumeration: three tokens, and no end of text. Row [a, b] of a table is the law of what follows a, b.
SIZE = 3
SHAPE = FixedShape(Shape((ROOT, ROOT, 0, 1)))
COPIED = Prompt((1, 0, 2, 0, 1, 2, 0, 0, 1), (START,))


def table(seed: int) -> torch.Tensor:
    values = torch.rand(SIZE, SIZE, SIZE, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE) ** 2 + 0.01
    return values / values.sum(-1, keepdim=True)


TARGET, ONE, OTHER = (ToyModel(table(seed)) for seed in (1, 2, 3))


class Heads:
    """Two heads after the target's own, on states of as many numbers as there are tokens."""

    heads = 3
    into_KDH = torch.zeros(2, SIZE, 1)

    def __call__(self, states_ND: torch.Tensor, which: slice) -> torch.Tensor:
        return torch.stack([states_ND, states_ND.flip(-1)])[which]

    def parameters(self) -> list[torch.Tensor]:
        return []


class Stateful:
    """A session of the target that returns states."""

    length = 1

    def states(self, start: int, stop: int) -> torch.Tensor:
        return torch.tensor([[0.3, -0.2, 0.9]], dtype=DOUBLE)


class OnStates(BlockwiseDraft):
    def __init__(self) -> None:
        self.target, self.heads, self.project = TARGET, Heads(), lambda states: states  # type: ignore[assignment]
        self.target.vocabulary_size = SIZE
        self.operations = 1.0

    def start(self, prompt: Prompt, sampling: Sampling) -> Any:
        return self.start_on(Stateful(), prompt, sampling)  # type: ignore[arg-type]


def found(size: int, texts: Sequence[Sequence[int]] = ((1, 0, 2), (2, 0, 1), (1, 1, 0))) -> Draft:
    return RetrievalDraft(SuffixIndex(suffixes.build(gather(texts, START), size), size), size, CPU, 2)


def drafts(one: ToyModel, other: ToyModel, size: int) -> dict[str, Draft]:
    lookup, model = LookupDraft(size, CPU, 2), ModelDraft(one, size)
    return {
        "lookup": lookup,
        "retrieval": found(size),
        "cascade": CascadeDraft(one, ModelDraft(other, size), 2, size, CPU),
        "cascade of a copy": CascadeDraft(one, lookup, 2, size, CPU),
        "merged": MergedDraft([model, ModelDraft(other, size)]),
        "merged with a copy": MergedDraft([model, lookup]),
        "merged with a corpus": MergedDraft([found(size), model]),
    }


def sequentially(q_LV: torch.Tensor, counts: Sequence[int], how: Children, chance: Branch) -> list[list[int]]:
    chosen: list[list[int]] = [[] for _ in counts]
    for row_V, count, tokens in zip(q_LV, counts, chosen, strict=True):
        for _ in range(count):
            if how == "replaced":
                tokens.append(chance.draw(row_V))
            elif float(row_V.index_fill(0, torch.tensor(tokens, dtype=torch.long), 0.0).sum()) > 0:
                tokens.append(chance.draw(without(row_V, tokens)))
    return chosen


@pytest.fixture
def enumerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws are decided by a `Branch` in the place of a generator, in double precision."""
    place = "specbench.drafts.continuations"
    monkeypatch.setattr(f"{place}.choose", sequentially)
    monkeypatch.setattr(f"{place}.draw", lambda row_V, chance: chance.draw(row_V))
    monkeypatch.setattr(f"{place}.standardise", lambda logits, *_: logits.double().softmax(-1))
    monkeypatch.setattr(f"{place}.one_hot", lambda *of: torch.nn.functional.one_hot(torch.tensor(of[0]), SIZE).double())
    monkeypatch.setattr(sys.modules["specbench.acceptance.verify"], "Uniforms", lambda _, chance, __: chance)


def error(draft: Draft, children: Children, verification: Verification, plan: Plan = SHAPE) -> tuple[float, float]:
    """The largest error of the law of a pass's text, completed by the target to depth + 1 tokens; and the tokens of a
    pass."""
    length = plan.depth + 1

    def play(chance: Branch) -> tuple[int, ...]:
        session = TreeDraft(draft, plan, children, frozenset()).start(COPIED, SAMPLED)
        proposal = session.propose([START, START], plan.depth, chance)  # type: ignore[arg-type]
        texts = {ROOT: (START, START)}
        for node, (token, parent) in enumerate(zip(proposal.tokens, proposal.parents or (), strict=True)):
            texts[node] = (*texts[parent], token)
        p_NV = torch.stack([TARGET.table_VVV[text[-2:]] for text in texts.values()])
        path, token = verify(p_NV, proposal, verification, chance)  # type: ignore[arg-type]
        return (*(proposal.tokens[node] for node in path), token)

    law: dict[tuple[int, ...], float] = {}
    mean = 0.0
    for probability, text in outcomes(play):
        law[text] = law.get(text, 0.0) + probability
        mean += probability * len(text)
    worst = 0.0
    for text in product(range(SIZE), repeat=length):
        reached = sum(law.get(text[:n], 0.0) * own(text, n) for n in range(1, length + 1))
        worst = max(worst, abs(reached - own(text)))
    return worst, mean


def own(text: Sequence[int], after: int = 0) -> float:
    """The target's probability of `text` after its first `after` tokens."""
    whole, likely = (START, START, *text), 1.0
    for place in range(after, len(text)):
        likely *= float(TARGET.table_VVV[whole[place], whole[place + 1], whole[place + 2]])
    return likely


ENUMERATED = {**drafts(ONE, OTHER, SIZE), "heads": OnStates()}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("children", CHILDREN)
@pytest.mark.parametrize("name", ENUMERATED)
def test_the_text_of_a_pass_has_the_targets_law(enumerated: None, name: str, children: Children, rule: str) -> None:
    worst, tokens = error(ENUMERATED[name], children, Verification(RULES[rule], SAMPLED))
    assert worst < ROUNDING and 1 < tokens < SHAPE.depth + 1


@pytest.mark.parametrize("name", ["heads", "cascade"])
def test_k_seq_on_independent_draws_from_one_q(enumerated: None, name: str) -> None:
    k_seq = Verification(accept_exact, SAMPLED, k_sequential=True)
    worst, tokens = error(ENUMERATED[name], "replaced", k_seq)
    assert worst < ROUNDING and tokens > 1


def merged_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every child is tested with the q of the first draft."""
    plain = TreeDraftSession.propose

    def propose(self: Any, tokens: Sequence[int], gamma: int, generator: Any) -> Any:
        proposal = plain(self, tokens, gamma, generator)
        first = {parent: row for row, parent in reversed(list(zip(proposal.q_NV, proposal.parents, strict=True)))}
        return proposal._replace(q_NV=[first[parent] for parent in proposal.parents])

    monkeypatch.setattr(TreeDraftSession, "propose", propose)


def counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a look-up found is a child although its token was drawn before."""

    def one_by_one(self: Found, how: Children, generator: Any) -> list[Any]:
        def following(tokens: Any) -> Any:
            rows = torch.eye(self.size, dtype=DOUBLE)
            return lambda before: next(((token, rows[token]) for token, _ in tokens), None)

        return [following(iter(ranked)) for ranked in self._ranked]

    monkeypatch.setattr(Found, "one_by_one", one_by_one)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fault", [merged_sharing, counted_twice])
def test_a_planted_fault_is_caught(enumerated: None, monkeypatch: pytest.MonkeyPatch, fault: Any, rule: str) -> None:
    """The token 1, which is copied after 0, 0, is one that the model draws too often, so that it is often rejected."""
    often = ToyModel(torch.tensor([0.05, 0.8, 0.15], dtype=DOUBLE).expand(SIZE, SIZE, -1))
    draft = MergedDraft([ModelDraft(often, SIZE), LookupDraft(SIZE, CPU, 2)])
    verification = Verification(RULES[rule], SAMPLED)
    assert error(draft, "distinct", verification)[0] < ROUNDING
    fault(monkeypatch)
    assert error(draft, "distinct", verification)[0] > 1e-3


def test_typical_acceptance_is_lossy_and_accepts_the_longest_plausible_path(enumerated: None) -> None:
    worst, tokens = error(ENUMERATED["merged"], "fixed", Verification(Typical(0.09, 0.3), SAMPLED))
    assert worst > 1e-3 and tokens > error(ENUMERATED["merged"], "fixed", Verification(accept_exact, SAMPLED))[1]


def test_the_tree_of_a_cascade_is_the_middle_models_own() -> None:
    """Node for node, on the same random numbers, whatever the inner draft guesses; only what it costs differs."""
    middle, plan = ToyModel(random_table(2)), FixedShape(Shape.of_widths([3, 2, 1]))
    inner: dict[str, Draft] = {
        "itself": ModelDraft(middle, VOCABULARY),
        "another": ModelDraft(ToyModel(random_table(3)), VOCABULARY),
        "lookup": LookupDraft(VOCABULARY, CPU, 2),
    }
    spent: dict[str, float] = {}
    for name, draft in inner.items():
        cascade = CascadeDraft(middle, draft, 2, VOCABULARY, CPU)
        for seed, children in product(range(10), CHILDREN):
            proposals = [
                TreeDraft(one, plan, children, frozenset({EOS})).start(PROMPT, SAMPLED).propose(
                    [START, 1, 2], 3, torch.Generator().manual_seed(seed)
                )
                for one in (ModelDraft(middle, VOCABULARY), cascade)
            ]  # fmt: skip
            assert proposals[0][:1] == proposals[1][:1] and proposals[0].parents == proposals[1].parents
            spent[name] = spent.get(name, 0.0) + (proposals[1].operations or 0.0)
    assert spent["lookup"] < spent["itself"]  # its guesses cost nothing


def test_a_copy_has_every_token_once_and_the_longest_match_first() -> None:
    session = LookupDraft(40, CPU, 3).start(Prompt((5, 6, 7, 8, 5, 6, 7, 9, 7, 2, 6, 7, 8, 30), (START,)), SAMPLED)
    root = session.after_text([START, 5, 6, 7], 3)
    (ranked,) = root.ranked(8)
    # "5 6 7" was followed by 8 and 9, the later first; "6 7" by 8 again, which counts once; 7 by 2.
    assert [token for token, _ in ranked] == [9, 8, 2]
    confidences = [confidence for _, confidence in ranked]
    assert confidences == sorted(confidences, reverse=True) and sum(confidences) < 1
    nodes = session.after_nodes([9, 8, 5], [ROOT, ROOT, ROOT]).ranked(8)
    assert [[token for token, _ in one] for one in nodes] == [[7], [5, 30], []]


def test_a_corpus_gives_its_commonest_continuations() -> None:
    texts = [(1, 0, 2), (1, 0, 2), (1, 0, 1), (2, 0, 1)]
    session = found(SIZE, texts).start(PROMPT, SAMPLED)
    (ranked,) = session.after_text([START, 1, 0], 2).ranked(4)  # type: ignore[attr-defined]
    assert [token for token, _ in ranked] == [2, 1]  # after "1 0" 2 comes twice and 1 once


# The real loop.
SEEN = ToyModel(random_table(1))
LOOP = drafts(ToyModel(random_table(2)), ToyModel(random_table(3)), VOCABULARY)
RUNS: list[tuple[str, Children, str]] = [
    (name, CHILDREN[place % 2], list(RULES)[place // 2 % 2]) for place, name in enumerate([*LOOP, *reversed(LOOP)])
]


def p_value(draft: TreeDraft, target: Any, prompt: Prompt, accept: Any, sampling: Sampling = SAMPLED) -> float:
    """1,000 texts of up to 3 tokens. Below `chi.ALARM`, a false alarm for one seed in 10,000, a test fails."""

    def decode(generator: torch.Generator) -> list[int]:
        return speculative(
            target, draft, prompt, gamma=2, sampling=sampling, max_new_tokens=3, generator=generator, accept=accept
        ).tokens

    return chi.p_value(decode, exact(target, sampling, 3, prompt), 1000)


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "children", "rule"), RUNS)
def test_sampled_texts_have_the_targets_law(name: str, children: Children, rule: str) -> None:
    tree = TreeDraft(LOOP[name], FixedShape(Shape.of_widths([2, 2])), children, frozenset({EOS}))
    assert p_value(tree, SEEN, Prompt((1, 0, 2, 1, 3, 0, 1, 2, 2, 0), (START,)), RULES[rule]) > chi.ALARM


@pytest.mark.statistical
@pytest.mark.parametrize("engine", [EagerModel, StaticModel])
@pytest.mark.parametrize("name", ["heads", "early exit"])
def test_sampled_texts_of_drafts_inside_the_target(name: str, engine: type[EagerModel]) -> None:
    target, heads = made("gpt2", engine, size=VOCABULARY, seed=6, end=EOS)
    draft = heads if name == "heads" else EarlyExitDraft(target, 1)
    tree = TreeDraft(draft, FixedShape(Shape.of_widths([2, 2])), "distinct", frozenset({EOS}))
    assert p_value(tree, target, Prompt((), (0,)), accept_exact, Sampling(2.0)) > chi.ALARM


ENGINES: dict[str, Any] = {"eager": EagerModel, "static": StaticModel, "cudagraph": graphs}
PLANS: dict[str, Plan] = {
    "widths": FixedShape(Shape.of_widths([3, 2, 1, 1])), "dynamic": ByConfidence(size=10, depth=4, top=3)
}  # fmt: skip
WORDS, END = 40, frozenset({1})


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
