"""Trees of every kind of draft: the law of a pass by enumeration of every draw of the draft and of the rule, through
the code that runs; what has to be caught is. `test_tree_drafts_loop` decodes with them.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from itertools import permutations, product
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from specbench.algorithm.acceptance.base import Children, Verification
from specbench.algorithm.acceptance.rules import multi_path
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.acceptance.rules.k_seq import accept_k_seq
from specbench.algorithm.acceptance.rules.multi_path import accept_multi_path
from specbench.algorithm.acceptance.rules.typical import Typical
from specbench.algorithm.acceptance.tree_rules import without
from specbench.algorithm.acceptance.verify import verify
from specbench.algorithm.continuations import Found, choose
from specbench.algorithm.draft import Draft
from specbench.algorithm.tree_draft import TreeDraft, TreeDraftSession
from specbench.engine.buffers import TensorCache
from specbench.engine.session import Prompt
from specbench.methods.cascade.draft import CascadeDraft
from specbench.methods.heads import HeadsDraft
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.model.draft import ModelDraft
from specbench.methods.several.draft import MergedDraft
from specbench.sampling import Sampling
from specbench.theory.trees import ROOT, Plan, TreeShape
from tests.support import chi
from tests.support.branches import Branch, outcomes
from tests.support.toy import EOS, PROMPT, START, VOCABULARY, ToyModel, random_table
from tests.support.tree_drafts import CHILDREN, CPU, DOUBLE, RULES, SAMPLED, drafts, found

ROUNDING = 1e-12

# Enumeration: three tokens, and no end of sequence. Row [a, b] of a table is the law of what follows a, b.
SIZE = 3
SHAPE = TreeShape((ROOT, ROOT, 0, 1))
COPIED = Prompt((1, 0, 2, 0, 1, 2, 0, 0, 1), (START,))


def table(seed: int) -> torch.Tensor:
    values = torch.rand(SIZE, SIZE, SIZE, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE) ** 2 + 0.01
    return values / values.sum(-1, keepdim=True)


TARGET, ONE, OTHER = (ToyModel(table(seed)) for seed in (1, 2, 3))


class Heads:
    """Two heads after the target's own, on states of as many numbers as there are tokens."""

    later = 2
    device = CPU

    def logits(self, states_ND: torch.Tensor, which: slice, _: object) -> torch.Tensor:
        return torch.stack([states_ND, states_ND.flip(-1)])[which]


class Stateful:
    """A session of the target that returns states."""

    length = 1

    def states(self, start: int, stop: int) -> torch.Tensor:
        return torch.tensor([[0.3, -0.2, 0.9]], dtype=DOUBLE)


class OnStates(HeadsDraft):
    def __init__(self) -> None:
        self.target, self.heads = TARGET, Heads()  # type: ignore[assignment]
        self.target.vocabulary_size, self.target.project = SIZE, None  # type: ignore[method-assign,assignment]
        self.operations = 1.0

    def read(self, states_ND: torch.Tensor, first: int, stop: int) -> torch.Tensor:
        return self.logits(states_ND, slice(first, stop)).flatten(0, 1)  # its target has no engine

    def start(self, prompt: Prompt, sampling: Sampling) -> Any:
        return self.start_on(Stateful(), prompt, sampling)  # type: ignore[arg-type]


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
    place = "specbench.algorithm.continuations"
    monkeypatch.setattr(f"{place}.choose", sequentially)
    monkeypatch.setattr(f"{place}.draw", lambda row_V, chance: chance.draw(row_V))
    monkeypatch.setattr(f"{place}.standardise", lambda logits, *_: logits.double().softmax(-1))
    monkeypatch.setattr(f"{place}.one_hot", lambda *of: torch.nn.functional.one_hot(torch.tensor(of[0]), SIZE).double())
    monkeypatch.setattr(sys.modules["specbench.algorithm.acceptance.verify"], "Uniforms", lambda _, chance, __: chance)


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
        assert all(proposal.parents[node] == before for before, node in zip([ROOT, *path], path, strict=False))  # type: ignore[index]
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


multi_path_of = multi_path.selected
ENUMERATED = {**drafts(ONE, OTHER, SIZE), "heads": OnStates()}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("children", CHILDREN)
@pytest.mark.parametrize("name", ENUMERATED)
def test_the_text_of_a_pass_has_the_targets_law(enumerated: None, name: str, children: Children, rule: str) -> None:
    worst, tokens = error(ENUMERATED[name], children, Verification(RULES[rule], SAMPLED))
    assert worst < ROUNDING and 1 < tokens < SHAPE.depth + 1


@pytest.mark.parametrize("name", ["heads", "cascade"])
def test_k_seq_on_independent_draws_from_one_q(enumerated: None, name: str) -> None:
    k_seq = Verification(accept_k_seq, SAMPLED)
    worst, tokens = error(ENUMERATED[name], "replaced", k_seq)
    assert worst < ROUNDING and tokens > 1


@pytest.mark.parametrize(
    "widths", [[2], [2, 1], [3], *(pytest.param(long, marks=pytest.mark.full) for long in ([3, 1], [2, 1, 1]))]
)
@pytest.mark.parametrize("name", ["heads", "cascade"])
def test_one_of_several_independent_paths_is_verified_as_a_block(
    enumerated: None, name: str, widths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, plan = Verification(accept_multi_path, SAMPLED), TreeShape.of_widths(widths)
    worst, tokens = error(ENUMERATED[name], "replaced", rule, plan)
    _, of_one = error(ENUMERATED[name], "replaced", rule, TreeShape.chain(len(widths)))
    assert worst < ROUNDING and tokens > of_one
    monkeypatch.setattr(
        multi_path, "selected", lambda p_NV, q_NV, tree: unselected(multi_path_of(p_NV, q_NV, tree), q_NV)
    )
    assert error(ENUMERATED[name], "replaced", rule, plan)[0] > 1e-3  # with q itself the law is another


def unselected(found: tuple[list[int], Any], q_NV: Any) -> tuple[list[int], Any]:
    """The selected path with the q that it was drawn from, as if it had not been selected."""
    return found[0], [q_NV[node] for node in found[0]]


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
        def children_among(tokens: Any) -> Any:
            rows = torch.eye(self.size, dtype=DOUBLE)
            return lambda before: next(((token, rows[token]) for token, _ in tokens), None)

        return [children_among(iter(ranked)) for ranked in self._ranked]

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
    middle, plan = ToyModel(random_table(2)), TreeShape.of_widths([3, 2, 1])
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


@pytest.mark.full
@pytest.mark.statistical
def test_children_of_a_level_are_draws_without_replacement() -> None:
    """All nodes of a level at once, of several counts; 4,000 levels. A false alarm for one seed in 10,000 each."""
    q_LV = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.0, 0.9, 0.0], [0.25, 0.25, 0.25, 0.25]])
    generator, seen = torch.Generator().manual_seed(5), Counter[tuple[int, ...]]()
    for _ in range(4000):
        first, second, third = choose(q_LV, [3, 4, 1], "distinct", generator)
        assert sorted(second) == [0, 2] and len(third) == 1  # no more tokens than q has
        seen[tuple(first)] += 1
    expected = {
        tokens: float(torch.stack([without(q_LV[0], tokens[:n])[token] for n, token in enumerate(tokens)]).prod())
        for tokens in permutations(range(4), 3)
    }
    observed, model = zip(*((seen[tokens], 4000 * likely) for tokens, likely in expected.items()), strict=True)
    assert chisquare(observed, [each * sum(observed) / sum(model) for each in model]).pvalue > chi.ALARM
    with pytest.raises(FloatingPointError):
        choose(torch.full((1, 4), torch.nan), [2], "distinct", generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_drawing_children_leaves_q_as_it_is(dtype: torch.dtype) -> None:
    q_LV = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=dtype)
    before = q_LV.clone()
    choose(q_LV, [3], "distinct", torch.Generator().manual_seed(5))
    assert torch.equal(q_LV, before)


def test_masks_of_trees_that_follow_the_text_stay_within_their_bound() -> None:
    cache = TensorCache(most=1000)
    for key in range(100):
        cache.put((key,), (torch.zeros(100, dtype=torch.uint8),))
    assert cache.get((99,)) is not None and cache.get((89,)) is None
    kept = [key for key in range(100) if cache.get((key,)) is not None]
    assert kept == list(range(90, 100))
