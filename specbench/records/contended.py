"""Runs of a contended machine, whose times are left out of tables and figures."""

from collections.abc import Sequence

AGAIN = "specbench results --again"  # measures them again


def contended(run_ids: Sequence[str]) -> list[str]:
    """A note on runs that are left out since the machine was contended, and the command that repeats them."""
    if not run_ids:
        return []
    names = ", ".join(run_id.rpartition("-")[2] for run_id in run_ids)
    return [
        f"left out, since the machine was contended while they were timed: {names}; `{AGAIN}` measures them again when "
        "nothing else runs"
    ]
