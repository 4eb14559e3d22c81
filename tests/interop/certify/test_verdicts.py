"""The kind of difference that a verdict names, from certificates alone."""

import pytest

from specbench.analysis.proof.certificate import Certificate, Verdict, greedy_certificate
from specbench.analysis.proof.departures import Departure
from specbench.analysis.proof.kinds import Agreement, DraftTokens, Side, enough, verdict

WRONG: Verdict = "not the target's"


def greedy(*margins: float, tokens: int = 1000) -> Side:
    """Completions at T = 0 with departures of these margins, none of them this machine's rounding."""
    made = [Departure(place, 5, 6, margin, 0.0) for place, margin in enumerate(margins)]
    return Side(greedy_certificate(tokens, [False] * len(made), 0.1), made)


def sampled(
    name: Verdict, power: float = 0.05, needed: int | None = None, close: bool = False, z: float | None = None
) -> Side:
    tests = {"proof_z": (-6.0 if name == WRONG else 0.5) if z is None else z}
    return Side(Certificate(name, "as tested", 2000, power, needed, tests), within_close=close)  # type: ignore[arg-type]


RIGHT, BROKEN, NEAR = greedy(), greedy(3.0), greedy(0.0007)


@pytest.mark.parametrize(
    ("drafted", "plain", "kind"),
    [
        (RIGHT, RIGHT, None),
        (RIGHT, BROKEN, None),
        (NEAR, None, "other rounding"),
        (NEAR, NEAR, "other rounding"),
        (greedy(*[0.01] * 30), None, None),
        (greedy(0.01, 0.06), None, None),
        (BROKEN, RIGHT, "a fault of speculation"),
        (BROKEN, NEAR, "a fault of speculation"),
        (BROKEN, BROKEN, "another distribution"),
        (BROKEN, None, None),
        (BROKEN, greedy(tokens=5), None),
        (sampled(WRONG), sampled("the target's"), "a fault of speculation"),
        (sampled(WRONG), sampled("cannot tell", 0.06, 5000), "a fault of speculation"),
        (sampled(WRONG), sampled("cannot tell", 0.2, 50000), None),
        (sampled(WRONG), sampled(WRONG), "another distribution"),
        (sampled(WRONG, z=-4.1), sampled("the target's", z=-3.6), None),
        (greedy(3.0), greedy(tokens=30), None),
        (greedy(*[3.0] * 20), greedy(tokens=400), "a fault of speculation"),
        (sampled(WRONG, close=True), None, "other rounding"),
    ],
)
def test_the_kind_of_a_difference(drafted: Side, plain: Side | None, kind: str | None) -> None:
    found = verdict(drafted, plain, 0.1, counts=DraftTokens(500, 400))
    assert found.kind == kind and found.name == (kind or drafted.certificate.verdict)
    assert found.line.startswith(found.name) and "500 tokens drafted, 400 accepted, 100 rejected" in found.line


def test_a_verdict_without_enough_draft_tokens_covers_plain_passes_only() -> None:
    assert enough(0.1) == 29
    for counts, said in (
        (DraftTokens(265, 0), "accepted"),
        (DraftTokens(100, 95), "rejected"),
        (DraftTokens(0, 0), ""),
    ):
        found = verdict(RIGHT, None, 0.1, counts=counts)
        assert found.covers_drafts is False and not found.is_verified
        assert "the verdict covers plain passes only" in found.line and said in found.line
        assert found.line.startswith("the target's, plain passes only")
    found = verdict(RIGHT, RIGHT, 0.1, counts=DraftTokens(100, 50))
    assert found.covers_drafts and found.is_verified and "plain passes" not in found.line
    unknown = verdict(RIGHT, RIGHT, 0.1)
    assert unknown.covers_drafts is None and "not counted" in unknown.line


def test_a_fault_needs_no_counts() -> None:
    found = verdict(BROKEN, RIGHT, 0.1, counts=DraftTokens(3, 1))
    assert found.is_faulty and not found.is_verified and "plain passes" not in found.line


def test_rounding_is_said_with_its_size_and_with_what_the_servers_write() -> None:
    same = verdict(NEAR, NEAR, 0.1, Agreement(20, 20))
    assert same.is_verified and not same.is_faulty
    assert "1 token is not the best of 1,000, at most 0.0007 logits below it" in same.line
    assert "all 20 completions equal those without a draft" in same.line
    apart = verdict(NEAR, RIGHT, 0.1, Agreement(20, 19, 0.0007))
    assert "19 of 20 completions equal" in apart.line and "the server without a draft has none" in apart.line
