"""Rules for trees of drafted tokens, by enumeration of every draft and every decision: the law of the text is the
target's, and acceptances are those worked out by hand. Known mistakes of others are detected by the same sums.

p = (.4, .3, .2, .1) and q = (.1, .2, .3, .4) are one position with two children; longer texts are over three tokens.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations, product

import numpy as np
import pytest
import torch

from specbench.algorithm.acceptance.base import Verdict
from specbench.algorithm.acceptance.expected import optimal_acceptance
from specbench.algorithm.acceptance.rules.block import accept_block
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.acceptance.tree_rules import (
    Chance,
    DraftedTree,
    Fixed,
    KSequential,
    NodeRows,
    Uniforms,
    WithoutReplacement,
    WithReplacement,
    accept_traversal,
    acceptance_by_rank,
    scale,
    walk,
    without,
)
from specbench.theory.trees import ROOT
from tests.support.branches import Branch, outcomes

DOUBLE = torch.float64
P, Q = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=DOUBLE), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=DOUBLE)
ROUNDING = 1e-12
TreeRule = Callable[[NodeRows, NodeRows, DraftedTree, Chance], Verdict]  # (p_NV, q_NV, tree, chance)
accept_with_replacement: TreeRule = partial(walk, start=WithReplacement)
accept_without_replacement: TreeRule = partial(walk, start=WithoutReplacement)
accept_fixed: TreeRule = partial(walk, start=Fixed)
accept_k_sequential: TreeRule = partial(walk, start=KSequential)
accept_traversal_of_independent: TreeRule = partial(accept_traversal, replaced=True)
Children = Callable[[torch.Tensor, int, Branch], list[int]]  # (q, how many, chance) to tokens


def independent(q_V: torch.Tensor, count: int, chance: Branch) -> list[int]:
    return [chance.draw(q_V) for _ in range(count)]


def distinct(q_V: torch.Tensor, count: int, chance: Branch) -> list[int]:
    tokens: list[int] = []
    for _ in range(count):
        tokens.append(chance.draw(without(q_V, tokens)))
    return tokens


def likeliest(q_V: torch.Tensor, count: int, chance: Branch) -> list[int]:
    return q_V.argsort(descending=True)[:count].tolist()


RULES: dict[str, tuple[TreeRule, Children]] = {
    "with replacement": (accept_with_replacement, independent),
    "without replacement": (accept_without_replacement, distinct),
    "K-SEQ": (accept_k_sequential, independent),
    "the likeliest": (accept_fixed, likeliest),
    "fixed, though drawn": (accept_fixed, independent),
    "traversal": (accept_traversal, distinct),
    "traversal, independent": (accept_traversal_of_independent, independent),
}


def one_position(
    rule: TreeRule, children: Children, count: int = 2, p: torch.Tensor = P, q: torch.Tensor = Q
) -> tuple[float, float]:
    """The largest error of the next token's law, and the acceptance."""

    def play(chance: Branch) -> tuple[int, int]:
        tokens = children(q, count, chance)
        nodes = len(tokens)
        verdict = rule(p.expand(nodes + 1, -1), q.expand(nodes, -1), DraftedTree(tokens, [ROOT] * nodes), chance)
        return (tokens[verdict.path[0]] if verdict.path else verdict.token), verdict.accepted

    law, acceptance = torch.zeros_like(p), 0.0
    for probability, (token, accepted) in outcomes(play):
        law[token] += probability
        acceptance += probability * accepted
    return float((law - p).abs().max()), acceptance


@pytest.mark.parametrize(
    ("rule", "children", "count", "acceptance"),
    [
        (accept_with_replacement, independent, 1, 0.6),
        (accept_fixed, independent, 2, 0.35),
        (accept_with_replacement, independent, 2, 0.72),
        (accept_k_sequential, independent, 2, 0.75),
        (accept_without_replacement, distinct, 2, 0.7643),
    ],
)
def test_golden_acceptances(rule: TreeRule, children: Children, count: int, acceptance: float) -> None:
    error, found = one_position(rule, children, count)
    assert error < ROUNDING and found == pytest.approx(acceptance, abs=5e-5)


def test_the_scale_of_k_seq() -> None:
    assert scale(P, Q, 1) == 1.0
    rho = scale(P, Q, 2)
    beta = float(Q.minimum(P / rho).sum())
    assert rho == pytest.approx(1.5) and 1 - (1 - beta) ** 2 == pytest.approx(rho * beta)


def test_golden_bounds() -> None:
    p, q = P.numpy(), Q.numpy()
    assert optimal_acceptance(p, q, 1, replaced=True)[-1] == pytest.approx(0.6)
    assert optimal_acceptance(p, q, 1, replaced=False)[-1] == pytest.approx(0.6)
    assert optimal_acceptance(p, q, 2, replaced=True)[-1] == pytest.approx(0.79)
    assert optimal_acceptance(p, q, 2, replaced=False)[-1] == pytest.approx(0.8345, abs=5e-5)
    assert optimal_acceptance(p, p, 3, replaced=True)[-1] == pytest.approx(1.0)


def some(seed: int, *shape: int) -> torch.Tensor:
    values = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE) ** 2 + 0.01
    return values / values.sum(-1, keepdim=True)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("drafts", [2, 3])
@pytest.mark.parametrize("replaced", [True, False])
def test_the_bound_is_the_least_over_all_sets_of_tokens_and_no_rule_exceeds_it(
    seed: int, drafts: int, replaced: bool
) -> None:
    """Pr(all drafts are in H) summed over sequences, for every H and not the few that the function looks at."""
    size = 5
    p, q = some(seed, size), some(seed + 100, size)
    inside: dict[tuple[int, ...], float] = {}
    for tokens in product(range(size), repeat=drafts):
        laws = [q if replaced else without(q, tokens[:place]) for place in range(drafts)]
        chance = float(torch.stack([law[token] for law, token in zip(laws, tokens, strict=True)]).prod())
        held = tuple(sorted(set(tokens)))
        inside[held] = inside.get(held, 0.0) + chance
    sets = [chosen for count in range(size + 1) for chosen in combinations(range(size), count)]
    least = min(
        float(p[list(chosen)].sum()) - sum(chance for held, chance in inside.items() if set(held) <= set(chosen))
        for chosen in sets
    )
    bound = optimal_acceptance(p.numpy(), q.numpy(), drafts, replaced)[-1]
    assert bound == pytest.approx(1 + least, abs=1e-10)
    for rule, children in RULES.values():
        if drafts == 2 and children is (independent if replaced else distinct):
            assert one_position(rule, children, drafts, p, q)[1] <= bound + ROUNDING


def test_the_bound_with_tokens_that_are_never_drawn() -> None:
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.0, 0.6, 0.4])
    assert optimal_acceptance(p, q, 2, replaced=False)[-1] == pytest.approx(0.5)


# Whole texts. Row [a, b] of a table is the law of what follows a, b; a text begins after 0, 0.
SIZE = 3
TARGET, DRAFT, OTHER = (some(seed, SIZE, SIZE, SIZE) for seed in (1, 2, 3))
SHAPES = {
    "two, and two more": [ROOT, ROOT, 0, 0],
    "deep first": [ROOT, 0, 1, ROOT],
    "deep second": [ROOT, ROOT, 1, 2],
    "three": [ROOT, ROOT, ROOT, 1],
}


def depth_of(parents: Sequence[int]) -> int:
    depths: list[int] = []
    for parent in parents:
        depths.append(1 + (depths[parent] if parent != ROOT else 0))
    return max(depths)


def error_of_texts(
    rule: TreeRule, children: Children, parents: Sequence[int], merged: bool = False
) -> tuple[float, float]:
    """The largest error of the law of a pass's text, completed by the target to depth + 1 tokens; and the tokens of a
    pass. `merged`: second children come from another draft."""
    length = depth_of(parents) + 1

    def play(chance: Branch) -> tuple[int, ...]:
        texts: dict[int, tuple[int, ...]] = {ROOT: (0, 0)}
        tokens, q_rows = [0] * len(parents), [DRAFT[0, 0]] * len(parents)
        for parent in dict.fromkeys(parents):
            siblings = [node for node, its in enumerate(parents) if its == parent]
            before = texts[parent][-2:]
            rows = [(OTHER if merged and place else DRAFT)[before] for place in range(len(siblings))]
            drawn = [chance.draw(row) for row in rows] if merged else children(DRAFT[before], len(siblings), chance)
            for node, token, row in zip(siblings, drawn, rows, strict=True):
                tokens[node], q_rows[node], texts[node] = token, row, (*texts[parent], token)
        tree = DraftedTree(tokens, parents)
        p_NV = torch.stack([TARGET[texts[node][-2:]] for node in (ROOT, *range(len(parents)))])
        verdict = rule(p_NV, torch.stack(q_rows), tree, chance)
        return (*(tree.tokens[node] for node in verdict.path), verdict.token)

    law: dict[tuple[int, ...], float] = {}
    mean = 0.0
    for probability, text in outcomes(play):
        law[text] = law.get(text, 0.0) + probability
        mean += probability * len(text)
    error = 0.0
    for text in product(range(SIZE), repeat=length):
        error = max(error, abs(sum(law.get(text[:n], 0.0) * _own(text, n) for n in range(1, length + 1)) - _own(text)))
    return error, mean


def _own(text: Sequence[int], after: int = 0) -> float:
    """The target's probability of `text` after its first `after` tokens."""
    whole = (0, 0, *text)
    found = 1.0
    for place in range(after, len(text)):
        found *= float(TARGET[whole[place], whole[place + 1], whole[place + 2]])
    return found


@pytest.mark.full
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", RULES)
def test_the_text_has_the_targets_law(name: str, shape: str) -> None:
    error, tokens = error_of_texts(*RULES[name], SHAPES[shape])
    assert error < ROUNDING and 1 < tokens < depth_of(SHAPES[shape]) + 1


def test_children_of_several_drafts_each_with_its_own_q() -> None:
    assert error_of_texts(accept_with_replacement, independent, SHAPES["two, and two more"], merged=True)[0] < ROUNDING


def test_children_beyond_the_tokens_that_q_can_draw() -> None:
    """Every token is a child at last, so that one of them must be accepted."""
    p, q = some(5, 3), torch.tensor([0.0, 1.0, 0.0], dtype=DOUBLE)
    assert one_position(accept_without_replacement, distinct, 3, p, q) == pytest.approx((0.0, 1.0), abs=ROUNDING)
    assert one_position(accept_traversal, distinct, 3, p, q) == pytest.approx((0.0, 1.0), abs=ROUNDING)


def test_a_tree_of_nothing_is_a_draw_from_the_target() -> None:
    for rule, _ in RULES.values():
        verdict = rule(P.unsqueeze(0), P.new_empty(0, 4), DraftedTree([], []), Uniforms(0, torch.Generator(), P.device))
        assert verdict.accepted == 0


def test_traversal_never_has_fewer_tokens_than_the_walk() -> None:
    for shape in SHAPES.values():
        walk, traversal = (error_of_texts(*RULES[name], shape)[1] for name in ("without replacement", "traversal"))
        assert traversal > walk - ROUNDING


def best_first(q: torch.Tensor, count: int, chance: Branch) -> list[int]:
    return sorted(distinct(q, count, chance), key=lambda token: -float(q[token]))


def without_duplicates(q: torch.Tensor, count: int, chance: Branch) -> list[int]:
    return list(dict.fromkeys(independent(q, count, chance)))


def pruned(q: torch.Tensor, count: int, chance: Branch) -> list[int]:
    """The likeliest of one more, in the order drawn: whether a child is there depends on its own token."""
    drawn = distinct(q, count + 1, chance)
    return [token for token in drawn if token != min(drawn, key=lambda token: float(q[token]))]


BIASED: dict[str, tuple[TreeRule, Children, float]] = {
    "the likeliest, tested with q": (accept_with_replacement, likeliest, 0.296),
    "distinct draws sorted by q": (accept_without_replacement, best_first, 0.079),
    "distinct draws tested with all of q": (accept_with_replacement, distinct, 0.043),
    "duplicates dropped, all of q kept": (accept_with_replacement, without_duplicates, 0.027),
    "a random tree pruned by q": (accept_without_replacement, pruned, 0.157),
}


@pytest.mark.parametrize("name", BIASED)
def test_a_biased_rule_is_caught(name: str) -> None:
    rule, children, error = BIASED[name]
    assert one_position(rule, children)[0] == pytest.approx(error, abs=5e-4)
    assert one_position(accept_fixed, children)[0] < ROUNDING  # whatever they depend on: certain tokens


def test_duplicates_may_be_dropped_where_q_is_renormalised() -> None:
    assert one_position(accept_without_replacement, without_duplicates)[0] < ROUNDING


@pytest.mark.parametrize("count", [0, 1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_a_chain_is_algorithm_1_on_the_same_uniform_numbers(count: int, dtype: torch.dtype) -> None:
    """And traversal is block verification; the next token, too, is drawn from the same row by the same number."""
    accepted = set()
    for seed in range(200):
        p, q = some(seed, count + 1, 8).to(dtype), some(seed + 1000, count, 8).to(dtype)
        tokens = [int(torch.multinomial(row, 1, generator=torch.Generator().manual_seed(seed))) for row in q]
        certain = torch.nn.functional.one_hot(torch.tensor(tokens, dtype=torch.long), 8).to(dtype)
        for rows, chain_rule, rules in (
            (q, accept_exact, [accept_with_replacement, accept_without_replacement, accept_k_sequential]),
            (certain, accept_exact, [accept_fixed]),
            (q, accept_block, [accept_traversal]),
        ):
            expected = chain_rule(p, rows, tokens, torch.Generator().manual_seed(seed))
            for rule in rules:
                chance = Uniforms(count, torch.Generator().manual_seed(seed), p.device)
                found = rule(p, rows, DraftedTree.chain(tokens), chance)
                assert (list(found.path), found.token) == (list(expected.path), expected.token)
            accepted.add(expected.accepted)
    assert accepted == set(range(count + 1))


def test_acceptance_by_rank_is_a_share_of_the_rules_acceptance() -> None:
    for start, children, acceptance in (
        (WithReplacement, independent, 0.72), (WithoutReplacement, distinct, 0.7642857),
    ):  # fmt: skip

        def ranks(chance: Branch, start=start, children=children) -> list[float]:  # type: ignore[no-untyped-def]
            return acceptance_by_rank(P, Q.expand(2, -1), children(Q, 2, chance), start)

        first, second = (sum(probability * found[rank] for probability, found in outcomes(ranks)) for rank in (0, 1))
        assert first == pytest.approx(0.6) and first + second == pytest.approx(acceptance)
