"""Checks that a draft or a rule of another package keeps speculative decoding exact, for its tests.

Both sample with a fixed seed and compare with the expected distribution by chi-square; a correct draft or rule fails
for one seed in 10,000. A failure raises `NotConforming` with the reason.

Shapes: G drafted tokens, V tokens of the vocabulary.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import AcceptanceRule
from specbench.algorithm.draft import Draft
from specbench.engine.session import Prompt
from specbench.sampling import Sampling, draw

ALARM = 1e-4
FEWEST = 5.0  # expected counts below this are put together
NEAR = 1e-4
FEW = 3  # proposals at each place but the first, whose proposals are counted


class NotConforming(AssertionError):
    """A draft or a rule that would change the target's distribution, or that violates the interface."""


def check_rule(rule: AcceptanceRule, gamma: int = 3, vocabulary: int = 3, samples: int = 4000, seed: int = 0) -> None:
    """Raise NotConforming unless `rule` preserves the target's distribution.

    Distributions p and q at each position are drawn at random, with a zero in each; `gamma` tokens are drafted from q;
    what a pass emits, continued by draws from p to `gamma` + 1 tokens, must be drawn from p at every position.
    """
    generator = torch.Generator().manual_seed(seed)
    for _ in range(3):
        p_GV, q_GV = _rows(gamma + 1, vocabulary, generator), _rows(gamma, vocabulary, generator)
        seen: Counter[tuple[int, ...]] = Counter()
        for _ in range(samples):
            drafted = [draw(q_V, generator) for q_V in q_GV]
            path, token = rule(p_GV, q_GV, drafted, generator)
            if list(path) != list(range(len(path))):
                raise NotConforming(f"a rule accepts a beginning of the drafted tokens, and this accepted {list(path)}")
            text = [*drafted[: len(path)], int(token)]
            text += [draw(p_V, generator) for p_V in p_GV[len(text) :]]
            seen[tuple(text)] += 1
        expected = _products(p_GV)
        if (p_value := _p_value(seen, expected, samples)) < ALARM:
            raise NotConforming(f"the tokens are not drawn from the target: p={p_value:.2g} in {samples} passes")


def check_draft(
    draft: Draft,
    vocabulary: int,
    prompt: Prompt,
    text: Sequence[int],
    temperature: float = 1.0,
    gamma: int = 3,
    samples: int = 1000,
    seed: int = 0,
) -> None:
    """Raise NotConforming unless the tokens of `draft` are drawn from its q, in `propose` and in `score`.

    `text` are some tokens that may follow `prompt`; before each of them the draft proposes. `gamma` limits a proposal.
    """
    sampling, generator = Sampling(temperature), torch.Generator().manual_seed(seed)
    tokens = [*prompt.prefix, *text]
    scored_LV = draft.start(prompt, sampling).score(tokens, len(prompt.prefix))
    if scored_LV.shape != (len(text), vocabulary):
        raise NotConforming(f"score returned {list(scored_LV.shape)}, and not [{len(text)}, {vocabulary}]")
    session = draft.start(prompt, sampling)
    for place in range(len(text)):
        before = tokens[: len(prompt.prefix) + place]
        seen: Counter[tuple[int, ...]] = Counter()
        q_V = scored_LV[place]
        for _ in range(samples if place == 0 else FEW):
            proposal = session.propose(before, gamma, generator)
            session.rollback(len(before) - 1)  # as after a pass, there is a token that it has not read
            if len(proposal.tokens) > gamma or any(not 0 <= token < vocabulary for token in proposal.tokens):
                raise NotConforming(f"proposed {proposal.tokens}: at most {gamma} tokens from 0 to {vocabulary - 1}")
            if not proposal.tokens:
                continue
            q_GV = proposal.q(torch.zeros(1, vocabulary))
            _check_distributions(q_GV, proposal.tokens)
            q_V = q_GV[0]
            seen[(proposal.tokens[0],)] += 1
        if place == 0 and seen:
            expected: dict[tuple[int, ...], float] = {(token,): float(q) for token, q in enumerate(q_V)}
            if (p_value := _p_value(seen, expected, sum(seen.values()))) < ALARM:
                raise NotConforming(f"the first token is not drawn from its q: p={p_value:.2g}")
        if seen and float((q_V - scored_LV[place]).abs().max()) > NEAR:
            raise NotConforming(f"at token {place} score gives another q than propose; is something kept too long?")


def _check_distributions(q_GV: Tensor, tokens: Sequence[int]) -> None:
    if len(q_GV) != len(tokens):
        raise NotConforming(f"{len(tokens)} tokens with {len(q_GV)} rows of q")
    if bool((q_GV < 0).any()) or float((q_GV.sum(-1) - 1).abs().max()) > NEAR:
        raise NotConforming("a row of q is not a distribution")
    if any(float(q_V[token]) <= 0 for q_V, token in zip(q_GV, tokens, strict=True)):
        raise NotConforming("a token was drafted whose q is 0")


def _rows(count: int, vocabulary: int, generator: torch.Generator) -> Tensor:
    """Distributions [count, V] at random, each with a zero if there is room for one."""
    rows = torch.rand(count, vocabulary, generator=generator) ** 2 + 0.02
    if vocabulary > 2:
        rows.scatter_(1, torch.randint(vocabulary, (count, 1), generator=generator), 0.0)
    return rows / rows.sum(-1, keepdim=True)


def _products(p_GV: Tensor) -> dict[tuple[int, ...], float]:
    """The probability of every sequence whose tokens are drawn from the rows."""
    texts: dict[tuple[int, ...], float] = {(): 1.0}
    for p_V in p_GV.cpu().double():
        texts = {(*text, token): chance * float(p) for text, chance in texts.items() for token, p in enumerate(p_V)}
    return texts


def _p_value(seen: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float], samples: int) -> float:
    """The chance that `expected` itself gives counts at least this far from it (Pearson's chi-square)."""
    if any(expected[text] == 0 for text in seen):
        return 0.0
    common = [text for text, chance in expected.items() if chance * samples >= FEWEST]
    pairs = [(seen[text], expected[text] * samples) for text in common]
    rare = samples - sum(wanted for _, wanted in pairs)
    if rare > 1e-6 * samples:
        pairs.append((samples - sum(count for count, _ in pairs), rare))
    if len(pairs) < 2:
        return 1.0
    statistic = sum((count - wanted) ** 2 / wanted for count, wanted in pairs)
    halves = torch.tensor([(len(pairs) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))
