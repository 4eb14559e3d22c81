"""Faults of a server's draft, from only counts: of /metrics, of logs, of responses.

Counts say nothing about tokens, so that few causes can be told apart: nothing is drafted, the first token is accepted
less often than a weightless draft's, no token is accepted from some position on.
"""

from collections.abc import Callable

from specbench.analysis.findings.finding import CHANCE, FEWEST, binomial_tail
from specbench.interop.readings.estimate import Estimate
from specbench.records.draft_signs import Finding

RARELY = 0.05  # of the target's passes: a draft that proposes in fewer is idle
UNIGRAM = 0.02  # acceptance of a first token below which a draft is worse than the commonest token of any text
CUT_OFF = 0.05  # the chance of a cliff if nothing is wrong


def findings(found: Estimate | None) -> list[Finding]:
    """The findings of one file, the likeliest cause first; none without counts."""
    if found is None:
        return []
    rules: tuple[Callable[[Estimate], Finding | None], ...] = (idle, weights, cliff)
    return [one for rule in rules if (one := rule(found)) is not None]


def idle(found: Estimate) -> Finding | None:
    """The server drafts nothing, or in few of its passes: what is measured is decoding without a draft."""
    passes = found.passes or 0
    whole = passes + found.undrafted
    if whole < FEWEST or passes > RARELY * whole:
        return None
    return Finding(
        "idle",
        f"the server drafted in {passes:,} of {whole:,} passes: {'no' if not passes else 'hardly any'} token comes "
        "from the draft",
        "that the draft is on for these requests (their sampling, their length, concurrency above a limit), and for a "
        "lookup that the text repeats itself and how long a match must be",
        {"passes": passes, "whole": whole},
    )


def weights(found: Estimate) -> Finding | None:
    """Passes hardly ever accept their first token: less often than a draft without weights does.

    The commonest token of a text is three to six in a hundred of its tokens, so that a unigram draft is accepted as
    often. What is said is false by chance once in 1,000.
    """
    if not found.passes or found.rate is None or found.gamma is None:
        return None
    most = found.marginal[0] if found.marginal else found.rate * found.gamma  # no more first tokens than tokens
    accepted = round(most * found.passes)
    if binomial_tail(accepted, found.passes, UNIGRAM) >= 1 / CHANCE:
        return None
    return Finding(
        "weights",
        f"the first draft token was accepted in {accepted:,} of {found.passes:,} passes at most; a unigram draft, "
        "which has no weights, is accepted 3 to 6 times in 100: the draft is probably loaded wrongly",
        "that each weight of the draft is loaded under its name, its tokenizer, and the target that it was trained for",
        {"accepted": accepted, "passes": found.passes},
    )


def cliff(found: Estimate) -> Finding | None:
    """No pass accepts a token from some position on, which chance would give less than once in 20.

    Beyond such a position a draft is cut off: its positions end, or a layer with a sliding window reads more than it
    was trained on.
    """
    if not found.passes or len(found.marginal) < 2 or found.marginal[-1] or not found.marginal[0]:
        return None
    last = max(place for place, share in enumerate(found.marginal) if share)
    reached = round(found.marginal[last] * found.passes)
    before = found.marginal[last - 1] if last else 1.0
    if (1 - found.marginal[last] / before) ** reached >= CUT_OFF:
        return None
    return Finding(
        "cliff",
        f"no pass accepted position {last + 2} or a later one, though {reached} reached it: γ above {last + 1} cannot "
        "pay, and the draft seems to be cut off there",
        "how many heads or positions the draft has, and its sliding window",
        {"position": last + 2, "reached": reached},
    )
