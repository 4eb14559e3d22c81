"""Findings about a draft in words, a line each (docs/draft-not-accepted.md)."""

from collections.abc import Iterator, Sequence

from specbench.analysis.findings import findings_of
from specbench.records.draft_signs import Finding
from specbench.records.run_record import RunRecord

PAGE = "what each line means, and how to compare the two configs: docs/draft-not-accepted.md"


def lines(record: RunRecord) -> list[str]:
    """The faults of a run's draft, the likeliest cause first."""
    found = findings_of(record)
    return [*said(found), *([PAGE] if found else [])]


def said(found: Sequence[Finding], of: str = "") -> Iterator[str]:
    """Findings as they are printed; `of` names the draft if several are compared."""
    for one in found:
        yield f"DRAFT{of and f' {of}'}: {one.line}. Check {one.check}"
