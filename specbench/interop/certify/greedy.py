"""T = 0: every token must be the target's best one, up to rounding; a text without ids may be compared as one."""

from specbench.algorithm.decoding import autoregressive
from specbench.analysis.proof.certificate import Certificate, greedy_certificate
from specbench.analysis.proof.departures import Departure, departures, first_difference
from specbench.analysis.proof.kinds import CLOSE
from specbench.interop.certify.outputs import Output, Outputs
from specbench.interop.certify.setup import Setup, generator_of, spec_of
from specbench.interop.certify.tested_rows import drop_copies, with_ends

ENDS_WHERE_IT_GOES_ON = ("finish reason", "finish_reason is stop where the target goes on")
BEYOND = 8  # tokens that the target writes past a text that is compared as text


def greedy(setup: Setup, found: Outputs) -> tuple[Certificate, list[tuple[str, Departure]]]:
    """The certificate, and each row's departures, up to the first that no other rounding explains, either."""
    where: list[tuple[str, Departure]] = []
    tokens, explained = 0, list[bool]()
    drop_copies(found, lambda row: True)
    with_ends(setup, found)
    for row in found.rows:
        differing, tested = _departures(setup, row)
        tokens += tested
        where += [(row.where, one) for one in differing]
        if row.claimed and any(one.exceeds(CLOSE) and one.position == len(row.tokens) - 1 for one in differing):
            found.contradictions[ENDS_WHERE_IT_GOES_ON].append(row.where)
        near = [one.is_rounding for one in differing if one.is_rounding]
        explained += near + [False] * (len(near) < len(differing))  # one fault per completion
    return greedy_certificate(tokens, explained, setup.config.within), where


def _departures(setup: Setup, row: Output) -> tuple[list[Departure], int]:
    """The departures of a row and how many of its tokens were tested.

    A row whose own tokens depart is compared as text: the target may have written it in other tokens.
    """
    target, noise = setup.target, setup.config.noise
    round_trips = row.text is None or setup.vocabulary.text(row.tokens) == row.text
    differing = departures(target, row.prompt, row.tokens, noise, CLOSE) if round_trips else []
    if row.text is None or (round_trips and all(one.is_rounding for one in differing)):
        # All tokens were compared, or those up to the first departure that rounding does not explain.
        faulty = bool(differing) and differing[-1].exceeds(CLOSE)
        return differing, differing[-1].position + 1 if faulty else len(row.tokens)
    own, whole, complete = _own_text(setup, row)
    ended = row.tokens[-1] in target.eos_ids
    if whole == row.text if ended and complete else whole.startswith(row.text) or not complete:
        return [], min(len(own), len(row.tokens))
    shared = next(
        (count for count in range(len(own), -1, -1) if row.text.startswith(setup.vocabulary.text(own[:count]))), 0
    )
    if shared == len(own) and own[-1] in target.eos_ids:
        shared -= 1  # the target ended its text here, and the row continues
    found = first_difference(target, row.prompt, own, [*own[:shared], -1])
    assert found is not None
    best = own[shared] if shared < len(own) else -1
    moved = found.noise if noise is None else max(found.noise, noise)
    return [Departure(shared, -1, best, found.margin, moved)], shared + 1


def _own_text(setup: Setup, row: Output) -> tuple[list[int], str, bool]:
    """The target's completion of a row's prompt as tokens and text.

    It stops when it ends, exceeds the row's text, or differs from it. The third value is False if the target's
    positions end before that.
    """
    assert row.text is not None
    most = None if setup.target.longest is None else setup.target.longest - len(row.prompt.prefix)
    room = len(row.tokens) + BEYOND
    while True:
        room = room if most is None else min(room, most)
        own = autoregressive(setup.target, row.prompt, spec_of(setup.sampling, room), generator_of(setup, 0)).tokens
        whole = setup.vocabulary.text(own)
        begins = row.text.startswith(whole) and len(whole) < len(row.text)
        if not begins or own[-1] in setup.target.eos_ids:
            return own, whole, True
        if room == most:
            return own, whole, False
        room *= 2  # the tokenizer needs fewer tokens for this text than the target
