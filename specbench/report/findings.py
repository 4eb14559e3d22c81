"""Findings about a draft in words, a line each (docs/draft-not-accepted.md)."""

from collections.abc import Iterator, Sequence

from specbench.analysis.findings import findings_of
from specbench.records.schema import FindingRecord, RunRecord


def lines(record: RunRecord) -> list[str]:
    """What is wrong with the draft of a run, the likeliest cause first."""
    return list(said([one.to_json() for one in findings_of(record)]))


def said(found: Sequence[FindingRecord], of: str = "") -> Iterator[str]:
    """Findings as they are printed; `of` names the draft where several are compared."""
    for one in found:
        yield f"DRAFT{of and f' {of}'}: {one['line']}. Check {one['check']}"
