"""Have the numbers of these runs moved? Summaries of today against those that were written down before.

alpha must lie within its recorded interval; a measured speedup may fall short of the recorded one by `margin`, since
machines differ and are noisy. Pure comparison: no files, no screen.
"""

from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]

# What names a measurement. The run's id does not: it changes with every key and file.
NAMES = ("target", "draft", "task", "temperature", "gamma", "accept", "device", "dtype")
OLDER = {"accept": "exact"}  # what records say that have no such column yet
KEPT = ("alpha", "alpha_low", "alpha_high", "speedup_measured", "hardware")


def baseline_of(rows: Iterable[Row]) -> list[Row]:
    """The rows to write down: names and numbers of each measurement, the newest where there are several."""
    newest = {_name(row): {key: row.get(key) for key in (*NAMES, *KEPT)} for row in rows}
    return [newest[name] for name in sorted(newest, key=str)]


def moved(baseline: Iterable[Row], rows: Iterable[Row], margin: float) -> list[str]:
    """What is wrong, a line each; empty where all is well. A measurement of the baseline that is missing is wrong."""
    now = {_name(row): row for row in rows}
    lines = []
    for then in baseline:
        name = " ".join(f"{key}={then.get(key)}" for key in NAMES)
        row = now.get(_name(then))
        if row is None:
            lines.append(f"{name}: no record")
            continue
        if not row.get("lossless", True) and not row.get("lossy"):
            lines.append(f"{name}: the texts are not the target's own")
        if then["alpha_low"] is not None and not then["alpha_low"] <= row["alpha"] <= then["alpha_high"]:
            lines.append(f"{name}: alpha {row['alpha']:.3f} left [{then['alpha_low']:.3f}, {then['alpha_high']:.3f}]")
        before, after = then["speedup_measured"], row["speedup_measured"]
        if before is not None and after is not None and after < before * (1 - margin):
            lines.append(f"{name}: speedup {after:.2f} is more than {margin:.0%} below {before:.2f}")
    return lines


def _name(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(key, OLDER.get(key)) for key in NAMES)
