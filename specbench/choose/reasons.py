"""A ranking in words: is there a gain, why is the first best, what would the next need, where does Eq. 1 fail."""

from collections.abc import Collection, Mapping, Sequence
from itertools import permutations
from statistics import fmean

from specbench import theory
from specbench.analysis.forecast.hindsight import Option, least_cost
from specbench.analysis.forecast.predict import Prediction, Predictions
from specbench.analysis.forecast.theorems import EQUATION_1

TINY = 1e-4
NOT_CONCLUDED = (
    "nothing is concluded from this ranking: the machine was contended while it was timed, and another candidate may "
    "be the fastest"
)
SAME_STEPS = 0.03  # of a target step: what differs by less than this is no argument


def reasons(table: Predictions) -> list[str]:
    """Sentences, the most important first."""
    best = table.ranked[0]
    lines = [_headline(table), *_gammas(table), *_of_any_rule(table)]
    others = {one.draft: one for one in reversed(table.ranked) if one.draft != best.draft and not one.tree}
    trees = [one for one in table.ranked if one.tree]
    if best.tree is None:
        others |= {one.draft: one for one in trees[:1]}
    for other in sorted(others.values(), key=lambda one: -one.estimated.value):
        lines.append(_against(table, best, other))
        lines.append(_would_win(best, other))
    return lines + _in_turn(table) + _where_trees_pay(table, trees) + _paper(table)


def gain_in_hindsight(table: Predictions, draft: str) -> tuple[float, int]:
    """How much faster than its best constant gamma `draft` could be by any rule for gamma, and that gamma.

    The rule knows the completion and picks one of the timed gammas, or 0, for each pass: the bound on all rules
    (`analysis.forecast.hindsight`), by the probe's costs.
    """
    gammas = sorted(gamma for named, gamma in table.prices.costs if named == draft)
    costs = {gamma: table.prices.of_passes((draft, gamma)) for gamma in gammas}
    every = {0: costs[gammas[0]][:, :1]} | costs
    alone, best = dict.fromkeys(gammas, 0.0), 0.0
    for text in table.found[draft]:
        options = {gamma: Option(text, gamma, price) for gamma, price in every.items()}
        best += least_cost(list(options.values()), table.most)
        for gamma in gammas:
            alone[gamma] += least_cost([options[gamma]], table.most)
    constant = min(gammas, key=lambda gamma: alone[gamma])
    return alone[constant] / best, constant


def _of_any_rule(table: Predictions) -> list[str]:
    """The bound on rules for gamma with the draft of the best chain that tests each token by itself."""
    chains = [one for one in table.ranked if one.tree is None and one.draft not in table.whole]
    if not chains or table.one_cost_per_pass:
        return []
    gain, gamma = gain_in_hindsight(table, chains[0].draft)
    return [
        f"a rule that chose γ before each pass of {chains[0].draft} could gain at most {100 * (gain - 1):.0f}% over "
        f"γ={gamma}: a bound, from the best of the timed γ, or 0, in hindsight"
    ]


def _in_turn(table: Predictions) -> list[str]:
    """The expected speedup of two drafts in turn (a horizontal cascade), if it is above each single draft's.

    The better draft proposes the first tokens. Lengths follow from alpha and c of each draft and from v at each gamma.
    """
    every = [one for one in table.ranked if one.tree is None and one.prediction == EQUATION_1]
    chains = {one.draft: one for one in reversed(every)}
    prices = {
        gamma: fmean(one.cost.verify_cost + one.cost.overhead for one in every if one.gamma == gamma)
        for gamma in {one.gamma for one in every}
    }
    found = []
    for first, second in permutations(chains.values(), 2):
        if first.alpha.value > second.alpha.value and first.cost.c > second.cost.c:
            alphas, costs = (first.alpha.value, second.alpha.value), (first.cost.c, second.cost.c)
            if lengths := theory.horizontal_lengths(alphas, costs, prices):
                value = theory.horizontal_improvement(alphas, costs, lengths, prices[sum(lengths)])
                found.append((value, first.draft, second.draft, lengths))
    if not found:
        return []
    value, first_name, second_name, lengths = max(found)
    alone = max(theory.walltime_improvement(one.alpha.value, one.gamma, one.cost.c, prices[one.gamma]) for one in every)
    if value <= alone:
        return []
    return [
        f"a horizontal cascade of {lengths[0]} tokens of {first_name}, then {lengths[1]} of {second_name}, would give "
        f"{value:.2f}× by theory; each draft by itself at most {alone:.2f}×: draft=cascade "
        f"draft.horizontal=[{first_name},{second_name}] draft.lengths=[{lengths[0]}] gamma={sum(lengths)}"
    ]


def _where_trees_pay(table: Predictions, trees: Sequence[Prediction]) -> list[str]:
    """The verification cost at which the best tree of each size would be as fast as the best chain."""
    chains = [one for one in table.ranked if one.tree is None]
    if not chains or not trees:
        return []
    sizes = {one.nodes: one for one in reversed(trees)}  # the best of each, since trees are ranked
    said = []
    for nodes, one in sorted(sizes.items(), key=lambda item: item[0] or 0):
        price = winning_v(chains[0], one)
        needed = f"no v({nodes}) is low enough" if price is None else f"v({nodes}) ≤ {price:.2f}"
        said.append(f"{one.tree}: {needed} (it is {one.cost.verify_cost:.2f})")
    return [
        f"against the best chain, {label(chains[0])} at {chains[0].estimated.value:.2f}×, a tree pays if: "
        + "; ".join(said)
        + ". v(n) is the cost of verifying n tokens in target steps"
    ]


def winning_v(chain: Prediction, tree: Prediction) -> float | None:
    """The v at which `tree` ties with `chain`, all else as measured; None if v = 0 is not enough."""
    v = tree.cost.verify_cost - tree.steps_per_pass * (1 - tree.estimated.value / chain.estimated.value)
    return v if v >= 0 else None


def label(one: Prediction) -> str:
    """The candidate in words."""
    return one.draft if one.tree else f"{one.draft} with γ={one.gamma}"


def _headline(table: Predictions) -> str:
    """The first sentence: whether the best candidate is faster, and whether the data can show it."""
    best, prompts = table.ranked[0], len(table.tokens_P)
    value, low, high = best.estimated.value, best.estimated.low, best.estimated.high
    cost = f"{best.tokens_per_pass:.2f} tokens per pass for {best.steps_per_pass:.2f} target steps"
    if value < 1:
        if best.alpha.value <= best.cost.c:
            cost = f"α={best.alpha.value:.2f} is not above c={best.cost.c:.2f} (Cor 3.9)"
        unsure = "" if high is None or high <= 1 else f" (95%: {low:.2f}–{high:.2f})"
        return (
            f"no draft helps here: the best, {label(best)}, would run at {value:.2f}× the target's own speed{unsure}; "
            f"{cost}"
        )
    if low is None:
        return f"a single prompt cannot show a gain: {label(best)} would be {value:.2f}× (calibrated); {cost}"
    if low <= 1:
        return (
            f"no significant gain: the best, {label(best)}, would be {value:.2f}× (calibrated, {low:.2f}–{high:.2f}) "
            f"from {prompts} prompts; more prompts (limit=, tokens=) or more rounds= may show it; {cost}"
        )
    return f"{label(best)}: {cost}, {value:.2f}× faster; a pass of all γ costs {_price(best)}"


def _price(one: Prediction) -> str:
    cost = one.cost
    return (
        f"{cost.of_pass(one.gamma):.2f} ({one.gamma * cost.c:.2f} drafting + {cost.verify_cost:.2f} verifying "
        f"+ {cost.overhead:.2f} accepting)"
    )


def _gammas(table: Predictions) -> list[str]:
    """Other gammas of the best draft whose speed does not differ significantly from the best."""
    best = table.ranked[0]
    close = []
    for one in table.ranked[1:]:
        if one.draft == best.draft:
            low = table.times_better((best.draft, best.gamma), (one.draft, one.gamma)).low
            if low is None or low <= 1:
                close.append(one.gamma)
    if not close:
        return []
    return [f"no significant difference between γ={best.gamma} and γ={', '.join(str(g) for g in sorted(close))}"]


def _against(table: Predictions, best: Prediction, other: Prediction) -> str:
    times = table.times_better((best.draft, best.gamma), (other.draft, other.gamma))
    by = f"{100 * (times.value - 1):.0f}%"
    if times.low is None or times.low <= 1:
        by += " (not significant)"
    return (
        f"{label(best)} beats {label(other)} by {by}: {best.tokens_per_pass:.2f} tokens per pass for "
        f"{best.steps_per_pass:.2f} target steps against {other.tokens_per_pass:.2f} for {other.steps_per_pass:.2f}; "
        + (", ".join(_differences(best, other)) or "α, c, verifying and accepting are alike")
    )


def _differences(best: Prediction, other: Prediction) -> list[str]:
    """The quantities in which two candidates differ; costs only if they matter to a pass of all gamma."""
    lines = []
    if (pair := _printed(best.alpha.value, other.alpha.value, 2)) is not None:
        lines.append(f"α {pair}")
    pair = _printed(best.cost.c, other.cost.c, 3)
    if pair is not None and abs(best.gamma * best.cost.c - other.gamma * other.cost.c) >= SAME_STEPS:
        lines.append(f"c {pair}")
    for name, ours, theirs in (
        ("verifying", best.cost.verify_cost, other.cost.verify_cost),
        ("accepting", best.cost.overhead, other.cost.overhead),
    ):
        if abs(ours - theirs) >= SAME_STEPS and (pair := _printed(ours, theirs, 2)) is not None:
            lines.append(f"{name} {pair}")
    return lines


def _printed(ours: float, theirs: float, digits: int) -> str | None:
    """'0.84 against 0.47'; None if both would be printed alike."""
    left, right = f"{ours:.{digits}f}", f"{theirs:.{digits}f}"
    return None if left == right else f"{left} against {right}"


def _would_win(best: Prediction, other: Prediction) -> str:
    """The c or the α at which `other` would catch up, all else (also its γ) as measured."""
    c, alpha = winning_c(best, other), winning_alpha(best, other)
    if other.tree and c is None:
        return f"{label(other)} cannot win: even c = 0 would not be enough (it is {other.cost.c:.3f} a level)"
    if c is None and alpha is None:
        return f"{label(other)} cannot win: even c = 0 or α = 1 would not be enough; verifying costs too much"
    needed = []
    if alpha is not None and f"{alpha:.2f}" != f"{other.alpha.value:.2f}":
        needed.append(f"an α of {alpha:.2f} (it is {other.alpha.value:.2f})")
    if c is not None and f"{c:.3f}" != f"{other.cost.c:.3f}":
        needed.append(f"a c of {c:.3f} (it is {other.cost.c:.3f})")
    if not needed:
        return f"{label(other)} would win with hardly any change"
    missing = "" if c is not None else "; no c would be low enough"
    return f"to win, {label(other)} would need {' or '.join(needed)}{missing}"


def winning_c(best: Prediction, other: Prediction) -> float | None:
    """The c at which `other` ties; None if c = 0 is not enough, or if it drafted nothing in this sample."""
    if not other.drafted_per_pass:
        return None
    # The surplus cost of its passes, compared with a tie, has to come out of the tokens that they draft.
    surplus = other.steps_per_pass * (1 - other.estimated.value / best.estimated.value)
    c = other.cost.c - surplus / other.drafted_per_pass
    return c if c >= 0 else None


def winning_alpha(best: Prediction, other: Prediction) -> float | None:
    """The alpha at which `other` would tie, if its tokens grow as in Eq. 1.

    None if alpha = 1 is not enough, and for a tree, whose tokens Eq. 1 does not give.
    """
    if other.tree:
        return None
    factor = other.estimated.value / theory.expected_tokens(other.alpha.value, other.gamma)
    low, high = other.alpha.value, 1.0
    if factor * theory.expected_tokens(high, other.gamma) < best.estimated.value:
        return None
    while high - low > TINY:
        middle = (low + high) / 2
        if factor * theory.expected_tokens(middle, other.gamma) < best.estimated.value:
            low = middle
        else:
            high = middle
    return high


def of_lossy(total_variations: Mapping[str, float]) -> list[str]:
    """A sentence about each lossy candidate: its total variation, the mean over the tokens, by the candidate's name."""
    return [
        f"{name}: its completions are not the target's own; the total variation per token is about {far:.3f}, "
        "like its α, along the target's own completions"
        for name, far in total_variations.items()
    ]


def best_lossless(table: Predictions, lossy: Collection[str]) -> list[str]:
    """The best lossless candidate, if the best of all is one of the `lossy`."""
    lossless = [one for one in table.ranked if one.draft not in lossy]
    if not lossless or table.ranked[0].draft not in lossy:
        return []
    return [f"the best lossless candidate is {label(lossless[0])}, {lossless[0].estimated.value:.2f}× faster"]


def _paper(table: Predictions) -> list[str]:
    """The candidate that Theorem 3.8 by itself would have picked, if it is a different one."""
    best = table.ranked[0]
    theirs = max(table.ranked, key=lambda one: one.predicted)
    if (theirs.draft, theirs.gamma) == (best.draft, best.gamma):
        return []
    return [
        f"By Theorem 3.8 one would pick {label(theirs)} ({theirs.predicted:.2f}× predicted, "
        f"{theirs.estimated.value:.2f}× calibrated): it assumes that verifying "
        f"{theirs.nodes or theirs.gamma + 1} positions costs 1 step; here it costs {theirs.cost.verify_cost:.2f}, and "
        f"accepting {theirs.cost.overhead:.2f}"
    ]


def of_batches(tables: Mapping[int, Predictions]) -> list[str]:
    """The best candidate at each batch size, and the batch size from which no draft pays; nothing for batch 1."""
    if list(tables) == [1]:
        return []
    lines = []
    for batch, table in tables.items():
        if not table.ranked:
            lines.append(f"batch={batch}: completions are too short for a full pass")
            continue
        best = table.ranked[0]
        lines.append(
            f"batch={batch}: {label(best)} is best, {best.estimated.value:.2f} times the target alone at the same "
            f"batch (c {best.cost.c:.3f}, v {best.cost.verify_cost:.2f})"
        )
    paying = [batch for batch, table in tables.items() if table.ranked and table.ranked[0].estimated.value > 1]
    losing = [batch for batch in tables if batch > max(paying, default=0)]
    lines.append(
        f"from batch={min(losing)} on no draft pays" if losing else f"a draft pays at every batch up to {max(tables)}"
    )
    return lines
