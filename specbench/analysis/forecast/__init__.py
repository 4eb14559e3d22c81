"""Expected passes of chains (`walk`), of trees (`tree_passes`), of rows of a batch, and at fixed chances.

Eq. 1 takes one alpha for all positions, independently. Real completions have easy and hard stretches, and they end: the
last pass emits less. Here a completion is walked from its first token with q / p at its own tokens (`Agreement.ratio`,
`Ranks.given`), so nothing is assumed but that the draft proposes the same after the same tokens, wherever its proposal
began; for drafts that do not (blockwise heads, copies from one place) the ratios of tokens further ahead are taken
(`Agreement.ahead`). At T = 0 the count is the very one that decoding gives; at T > 0 it is the expectation over the
acceptance draws, given the completion.

Given the completion, a chain that began at s keeps its tokens up to i with the chance
- prod_{s <= j <= i} min(1, q_j / p_j) if each token is tested by itself (Algorithm 1, and a `TokenRule` by its own
  chances);
- min_{k <= i} prod_{s <= j <= k} q_j / p_j, at most 1, under block verification: x_s ... x_i are drafted with prod q_j
  and then kept with w_i (`acceptance.rules.block`: the chance that at least i of these drafted tokens stay), and the
  completion has them with prod p_j. A token that is likelier under q than under p so makes up for one that is not.
A pass over a tree goes down along the completion's own tokens.

Works on plain numbers. Shapes: G positions of a proposal, ... any leading axes, such as resamples.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.records.run_record import PromptRecord
from specbench.theory.trees import ROOT, TreeShape

NEGLIGIBLE = 1e-9
Floats = NDArray[np.float64]
Given = Sequence[Sequence[Sequence[float]]]  # [levels, tokens, ranks]
Pass = Callable[[int, float, int, Floats, Floats], None]
SURPLUS = 1e12  # products of ratios are cut here, so that none becomes infinite


def _passes(length: int, gamma: int, most: int | None, one_pass: Pass) -> Floats:
    """Expected passes [2, gamma + 1] over a completion of `length` tokens, for proposals of up to `gamma` levels.

    `one_pass(start, chance, room, begun, counts)` takes in a pass that begins at token `start` with `chance` and may
    draft up to `room` levels: it adds to `begun`, the expected passes that begin at each later token, and to `counts`
    [gamma + 1], the passes that draft 0, 1, ... levels.
    """
    most = length + gamma + 1 if most is None else max(most, length)
    found, begun = np.zeros((2, gamma + 1)), np.zeros(length + 1)  # the last entry of `begun` is the completion's end
    begun[0] = 1.0
    for start in range(length):
        if abs(begun[start]) >= NEGLIGIBLE:
            one_pass(start, float(begun[start]), min(gamma, most - start - 1), begun, found[min(start, 1)])
    return found


class Walked(NamedTuple):
    """Expected passes over a completion, and what happens at each position of their proposals.

    `passes` [2, gamma + 1]: how many draft 0, 1, ... gamma tokens; the first pass of the completion, and all others.
    `positions` [gamma, 2]: expected passes that reach a position, and of these the accepted. A token that was not
    proposed counts as rejected; the last token of the completion does not count, since it saves no pass.
    """

    passes: Floats
    positions: Floats


def walk(
    ratio: Sequence[float],
    gamma: int,
    most: int | None = None,
    silent: Sequence[bool] = (),
    stops: float | None = 0.0,
    whole: bool = False,
    ahead: Sequence[Sequence[float | None]] | None = None,
) -> Walked:
    """Walk this completion in passes that draft 0, 1, ... gamma tokens: its first pass, and all others.

    Args:
        ratio: q / p of each token.
        gamma: tokens per pass.
        most: the limit on new tokens; None: no limit. A shorter completion ended by itself, so that its last token can
            be drafted and accepted. Near the limit a pass drafts no more tokens than there is room for.
        silent: positions at which the draft proposes nothing.
        stops: the completion does not show the tokens drafted after a rejection; this is the probability, at each token
            from the rejected token on, that the draft ends its proposal there, as a model does when it draws the end of
            the completion. None: this draft never ends a proposal early, not at the end of the completion either.
        whole: a drafted block is tested as a whole (block verification).
        ahead: the ratios of the second, third, ... token of a proposal at that token, if they differ from the first
            token's, which are `ratio`; None if a proposal is shorter.
    """
    length, positions = len(ratio), np.zeros((gamma, 2))
    drafted_more = [_stopping(stops or 0.0, room) for room in range(gamma + 1)]

    def one_pass(start: int, chance: float, room: int, begun: Floats, counts: Floats) -> None:
        drafted = 0 if silent and silent[start] else proposed(start, room, ahead)
        reached, product = chance, 1.0
        for place in range(start, min(start + drafted, length)):
            accepted = place - start
            here = (ahead[accepted - 1][place] if ahead and accepted else ratio[place]) or 0.0
            product = min(product * here, SURPLUS)
            kept = min(reached, chance * product) if whole else reached * min(1.0, here)
            if place < length - 1:
                positions[accepted] += reached, kept
            rejected = reached - kept
            begun[place + 1] += rejected
            counts[accepted + 1 : drafted + 1] += rejected * drafted_more[drafted - accepted]
            reached = kept
            if reached < NEGLIGIBLE:
                return
        if start + drafted < length:
            begun[start + drafted + 1] += reached  # all kept; the target's own token comes on top
            counts[drafted] += reached
            if drafted < gamma and start + drafted < length - 1:
                positions[drafted, 0] += reached
        else:
            counts[drafted if stops is None else length - start] += reached  # the completion ends in this proposal

    return Walked(_passes(length, gamma, most, one_pass), positions)


def proposed(start: int, most: int, ahead: Sequence[Sequence[float | None]] | None) -> int:
    """How long a proposal of up to `most` tokens is that begins at `start`, as far as the completion shows."""
    if ahead is None:
        return most
    for count in range(1, most):
        place = start + count
        if count > len(ahead) or (place < len(ahead[0]) and ahead[count - 1][place] is None):
            return count
    return most


def _stopping(chance: float, room: int) -> Floats:
    """How likely 1 ... `room` tokens are, if after each the draft stops with `chance`."""
    likely: Floats = chance * (1 - chance) ** np.arange(room, dtype=np.float64)
    if room:
        likely[-1] = (1 - chance) ** (room - 1)
    return likely


def tree_passes(
    given: Given, shape: TreeShape, most: int | None = None, of_count: Mapping[int, Given] | None = None
) -> Floats:
    """Expected passes [2, depth + 1] over this completion that grow 0, 1, ... levels: its first pass, and all others.

    `given[d][i][k]` is the probability that the child of rank k is accepted at level d, given that the completion has
    token i (`Ranks.given`); an unbiased estimate of it serves as well. A single level stands for all; among several,
    missing levels have no children. `most` as in `walk`. `of_count[n]` stands for `given` at nodes of n children, for a
    rule whose test depends on n (K-SEQ).

    Proposition 3.4 of Sequoia (`trees.expected_tree_tokens`) has one acceptance by rank for all tokens of a completion
    that never ends.
    """
    length, children = len(given[0]), defaultdict[int, list[int]](list)
    for node, parent in enumerate(shape.parents):
        children[parent].append(node)

    def one_pass(start: int, chance: float, room: int, begun: Floats, counts: Floats) -> None:
        counts[room] += chance
        reached = {ROOT: chance}
        for place in range(start, min(start + room + 1, length)):
            below: dict[int, float] = defaultdict(float)
            level = 0 if len(given) == 1 else place - start
            grows = place < start + room and level < len(given)
            for node, at_node in reached.items():
                left, of_node = at_node, (of_count or {}).get(len(children[node]), given)
                for child, accepted in zip(children[node], of_node[level][place] if grows else (), strict=False):
                    below[child] += at_node * accepted
                    left -= at_node * accepted
                begun[place + 1] += left  # none of them: the completion's token is the target's own
            reached = {node: at_node for node, at_node in below.items() if abs(at_node) > NEGLIGIBLE}

    return _passes(length, shape.depth, most, one_pass)


class ExpectedOfRows(NamedTuple):
    """Expected tokens of a row's pass, and how many it drafts."""

    tokens: float
    drafted: float


def expected_of_rows(prompts: Sequence[PromptRecord], gamma: int, max_new_tokens: int) -> ExpectedOfRows:
    """Expected tokens of the mean pass over the rows of a batch, each with its own alpha_b and a completion that ends.

    If no completion ended, this is the mean of Omega(alpha_b) over rows. (Omega of the mean alpha is lower, for Omega
    is convex.) A row counts for as many passes as its completion needs at its alpha_b, estimated by `alphas_of_rows`.
    """
    betas = [prompt["beta"] for prompt in prompts if prompt["beta"]]
    passes_D = np.zeros(gamma + 1)
    for (alpha, length), rows in Counter(zip(alphas_of_rows(betas), map(len, betas), strict=True)).items():
        passes_D += rows * walk([alpha] * length, gamma, max_new_tokens).passes.sum(0)
    passes = float(passes_D.sum())
    return ExpectedOfRows(sum(map(len, betas)) / passes, float(passes_D @ np.arange(gamma + 1)) / passes)


def alphas_of_rows(betas: Sequence[Sequence[float]]) -> list[float]:
    """An alpha for each row, from `betas` of its tokens (at least one), with no more spread than the rows truly have.

    The mean of a short row's betas scatters about its alpha, and the number of passes is convex in alpha, so that the
    raw means give too many passes (5% at alpha .75, gamma 4 and 6 tokens per row). Empirical Bayes: with tau^2 the
    variance of alpha between rows and sigma^2 of beta within them, from the analysis of variance of unequal groups, the
    mean of n tokens scatters by tau^2 + sigma^2 / n. Means are drawn to the pooled alpha by the square root of
    tau^2 / (tau^2 + sigma^2 / n), which leaves their variance at tau^2 (constrained empirical Bayes: Ghosh 1992). The
    posterior mean, without the root, would spread too little and give too few passes.
    """
    counts = np.array([len(beta) for beta in betas], float)
    means = np.array([sum(beta) / len(beta) for beta in betas])
    tokens, rows = float(counts.sum()), len(betas)
    if not rows:
        return []
    if rows < 2 or tokens == rows:  # without two rows no spread between them, without two tokens none within
        return [float(counts @ means) / tokens] * rows
    pooled = float(counts @ means) / tokens
    within = sum(sum((one - mean) ** 2 for one in beta) for beta, mean in zip(betas, means, strict=True))
    sigma2 = float(within) / (tokens - rows)
    between = float(counts @ (means - pooled) ** 2) / (rows - 1)
    tau2 = max(0.0, (between - sigma2) * (rows - 1) / (tokens - float(counts @ counts) / tokens))
    if tau2 == 0:
        return [pooled] * rows
    shrunk = pooled + np.sqrt(tau2 / (tau2 + sigma2 / counts)) * (means - pooled)
    return [float(alpha) for alpha in np.clip(shrunk, 0.0, 1.0)]


def expected_by_position(chances: Floats) -> Floats:
    """Expected tokens of a pass that no end cuts, 1 + a_1 + a_1 a_2 + ...

    `a_i` [..., G] is the probability that a token is accepted if all before it were. Equation 1 if all are alpha.
    """
    expected: Floats = 1 + np.cumprod(chances, axis=-1).sum(-1)
    return expected


def passes_to_come(chances: Floats, longest: int) -> Floats:
    """Expected passes [..., longest + 1] by the number of tokens still to come, for fixed `chances` [..., G].

    Eq. 1 assumes an endless completion; in one that ends, the last pass emits fewer tokens. With fixed, independent
    chances the passes to come depend only on the tokens to come (`walk`: chances that differ from token to token).
    Whether the end can itself be drafted, or the limit on new tokens leaves no room for it, makes no difference.
    """
    gamma = chances.shape[-1]
    ones = np.ones((*chances.shape[:-1], 1))
    reached = np.concatenate([ones, np.cumprod(chances, axis=-1)], axis=-1)  # [..., G + 1]
    rejected = reached[..., :-1] * (1 - chances)
    table = np.zeros((longest + 1, *chances.shape[:-1]))
    for left in range(1, longest + 1):
        drafted = min(gamma, left - 1)
        table[left] = 1.0
        for accepted in range(drafted):
            table[left] += rejected[..., accepted] * table[left - accepted - 1]
        table[left] += reached[..., drafted] * table[left - drafted - 1]  # all accepted, and the target's own token
    return np.moveaxis(table, 0, -1)


def tokens_by_position(chances: Sequence[float], lengths: Sequence[int]) -> float:
    """Tokens per pass over completions of these lengths, from the acceptance at each position of a proposal.

    1 + a_1 + a_1 a_2 + ..., less the tokens that the last passes of the completions lack. `chances` are the acceptance
    probabilities of tokens whose predecessors in the proposal were accepted.
    """
    table = passes_to_come(np.array(chances, float), max(lengths))
    return sum(lengths) / float(table[list(lengths)].sum())
