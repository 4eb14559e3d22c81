"""Each kind of difference, planted in our own engine, is named; sound servers have none."""

from pathlib import Path

import pytest

from tests.support.served import PLANTED, named

QUICK = ("a penalty once a block, T=0", "one drafted token in fifty, T=0", "a penalty that is not claimed, T=0")
MANY = ("a penalty once a block", "rounded weights")  # need more tokens than the others


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_fault_is_named_from_few_greedy_completions(name: str, tmp_path: Path) -> None:
    served, kind, said = PLANTED[name]
    found = named(served, 6, tmp_path)
    assert found.kind == kind and said in found.line


@pytest.mark.full
@pytest.mark.statistical
@pytest.mark.parametrize("name", PLANTED)
def test_the_kind_of_a_planted_fault_is_named(name: str, tmp_path: Path) -> None:
    """False alarm of sound servers at T=1: 3e-4 for the tests of each, 1e-4 for lagging penalties."""
    served, kind, said = PLANTED[name]
    found = named(served, 80 if name in MANY else 24, tmp_path)
    assert found.kind == kind and said in found.line
    assert found.counts is not None and found.covers_drafts
    assert found.is_verified == (kind in (None, "other rounding"))
