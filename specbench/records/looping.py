"""Runs of which many completions loop, in words: on such text any draft looks good (docs/run.md)."""

from collections.abc import Iterable

from specbench.formatting import interval_of
from specbench.records.run_record import Row

MOST_LOOPING = 0.05  # share of looping completions, above which a speedup has a mark
LOOPING = "loops: completions repeat a phrase at once, and any draft looks good on them (docs/run.md)"


def many_loop(row: Row) -> bool:
    """Whether more than `MOST_LOOPING` of a run's completions loop; False if it is not known or not measured."""
    share = row.get("looping")
    return not row.get("simulated") and isinstance(share, float) and share > MOST_LOOPING  # NaN is not above


def why_loops(row: Row) -> str | None:
    """'63% of completions loop, 2.10 (2.00–2.20) without them' for a run with many loops; otherwise None."""
    if not many_loop(row):
        return None
    without = row.get("speedup_without_loops")
    known = without is not None and without == without  # NaN if a frame has no value
    said = f"{interval_of(row, 'speedup_without_loops')} without them" if known else "no speedup without them"
    return f"{row['looping']:.0%} of completions loop, {said}"


def remarks_on_loops(rows: Iterable[Row]) -> list[str]:
    """What the marks of runs with many loops mean."""
    return [LOOPING] if any(map(many_loop, rows)) else []
