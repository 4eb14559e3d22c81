"""Trees of every kind of draft: the law of a pass by enumeration of every draw of the draft and of the rule, through
the code that runs; greedy identity and the law of sampled texts through the real loop; what has to be caught is.
"""

import sys
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
from branches import Branch, outcomes
from toy import START, ToyModel

from specbench.acceptance import Children, Verification, accept_block, accept_exact, verify
from specbench.acceptance.tree.rounds import without
from specbench.drafts import (
    BlockwiseDraft,
    CascadeDraft,
    Draft,
    LookupDraft,
    MergedDraft,
    ModelDraft,
    RetrievalDraft,
    TreeDraft,
    suffixes,
)
from specbench.drafts.corpus import gather
from specbench.drafts.suffixes import SuffixIndex
from specbench.models import Prompt
from specbench.sampling import Sampling
from specbench.trees import ROOT, FixedShape, Plan, Shape

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


def sequentially(row_V: torch.Tensor, count: int, how: Children, chance: Branch) -> list[int]:
    tokens: list[int] = []
    for _ in range(count):
        if how == "replaced":
            tokens.append(chance.draw(row_V))
        elif float(row_V.index_fill(0, torch.tensor(tokens, dtype=torch.long), 0.0).sum()) > 0:
            tokens.append(chance.draw(without(row_V, tokens)))
    return tokens


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
