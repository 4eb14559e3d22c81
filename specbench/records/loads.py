"""Which of several candidates is the best at one load: the highest goodput, and of nearly equal ones the fastest."""

from collections.abc import Sequence

from specbench.records.documents import LoadDocument, LoadRow

TIE = 0.01  # goodputs that differ by no more are equal: at a low load every candidate keeps the promise


def best_at(rows: Sequence[LoadRow]) -> LoadRow:
    """Of rows of one load the highest goodput, and within `TIE` of it the lowest median time per output token."""
    highest = max(row["goodput"] for row in rows)
    return min(
        (row for row in rows if row["goodput"] >= (1 - TIE) * highest), key=lambda row: row["tpot_s"]["p50"]
    )  # fmt: skip


def best_drafts(record: LoadDocument) -> list[tuple[LoadRow, LoadRow]]:
    """Of each load the target alone, and the best draft and gamma."""
    found = []
    for rate in dict.fromkeys(row["rate"] for row in record["rows"]):
        here = [row for row in record["rows"] if row["rate"] == rate]
        found.append((here[0], best_at(here[1:])))
    return found
