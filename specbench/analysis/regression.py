"""Compare the summaries of runs with recorded summaries, to detect regressions.

alpha must lie within its recorded interval; a measured speedup may fall short of the recorded speedup by a margin,
since times are noisy, and is compared on the same hardware only. The speedup of a disturbed run is neither compared nor
recorded. One baseline holds the measurements of several kinds of device; kinds without new measurements are not
changed.

Pure comparison: no files, no screen.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from specbench.records.schema import Row

# What names a measurement. The run's id does not: it changes with every key and file.
NAMES = ("target", "draft", "task", "temperature", "top_k", "top_p", "accept", "prompts", "gamma", "device", "dtype")
OLDER = {"accept": "exact"}  # what records say that have no such column yet
KEPT = ("alpha", "alpha_low", "alpha_high", "speedup_measured", "hardware")


@dataclass(frozen=True)
class Comparison:
    """The result of comparing records with a baseline.

    Attributes:
        moved: a line for each number that moved.
        disturbed: a line for each speedup that was measured while another process used the machine, and so is
            unreliable.
        elsewhere: measurements of a kind of device that no record has.
        compared: measurements that were compared.
        untimed: those of the compared that were timed on other hardware, so that alpha alone was compared.
    """

    moved: list[str]
    disturbed: list[str]
    compared: int
    elsewhere: int
    untimed: int


def baseline_of(rows: Iterable[Row], before: Iterable[Row] = ()) -> list[Row]:
    """The rows of a new baseline: names and numbers of each measurement, the newest where there are several.

    Measurements of the baseline `before` that are of another kind of device are taken over.
    """
    newest = {
        _name(row): {key: row.get(key) for key in (*NAMES, *KEPT)}
        | {"gamma": _gamma(row)}
        | ({"speedup_measured": None} if row.get("disturbed") else {})
        for row in rows
    }
    kinds = {_kind(row) for row in newest.values()}
    newest |= {_name(row): row for row in before if _kind(row) not in kinds}
    return [newest[name] for name in sorted(newest, key=str)]


def compare(baseline: Iterable[Row], rows: Iterable[Row], margin: float) -> Comparison:
    """Compare records with a baseline; a measurement of the baseline that is missing has moved too.

    `margin` is the share of a speedup that may be lost.
    """
    now = {_name(row): row for row in rows}
    kinds = {_kind(row) for row in now.values()}
    lines, disturbed, compared, elsewhere, untimed = [], [], 0, 0, 0
    for then in baseline:
        if _kind(then) not in kinds:
            elsewhere += 1
            continue
        compared += 1
        name = " ".join(f"{key}={then[key]}" for key in NAMES if then.get(key) is not None)
        row = now.get(_name(then))
        if row is None:
            lines.append(f"{name}: no record")
            continue
        if not row.get("lossless", True) and not row.get("lossy"):
            lines.append(f"{name}: completions are not the target's own")
        if then["alpha_low"] is not None and not then["alpha_low"] <= row["alpha"] <= then["alpha_high"]:
            lines.append(f"{name}: alpha {row['alpha']:.3f} left [{then['alpha_low']:.3f}, {then['alpha_high']:.3f}]")
        before, after = then["speedup_measured"], row["speedup_measured"]
        if before is None or after is None:
            continue
        if then["hardware"] != row["hardware"]:
            untimed += 1
        elif row.get("disturbed"):
            disturbed.append(f"{name}: {row['disturbed_by']}")
        elif after < before * (1 - margin):
            lines.append(f"{name}: speedup {after:.2f} is more than {margin:.0%} below {before:.2f}")
    return Comparison(lines, disturbed, compared, elsewhere, untimed)


def _name(row: Row) -> tuple[object, ...]:
    named = {**row, "gamma": _gamma(row)}
    return tuple(OLDER.get(key) if named.get(key) is None else named[key] for key in NAMES)


def _gamma(row: Row) -> object:
    """The number, or for a policy or a tree the value requested."""
    return row.get("gamma_requested") if row.get("gamma") is None else row["gamma"]


def _kind(row: Row) -> str:
    """cpu, cuda or mps."""
    return str(row.get("device")).partition(":")[0]
