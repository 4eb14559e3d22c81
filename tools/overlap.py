"""Do two measurements of one config agree? docs/overlap.csv from pairs of records of three processes each.

    python tools/overlap.py FOLDER [--rounds 5] RUN …       RUN: the end of the name of a kept record
    make docs-numbers

Each round measures the configs of these records with `tools/measure_again.py --runs 3` into a folder of its own. Each
two rounds are a pair; pairs that share a round are not independent. Two intervals of the speedup overlap if neither
ends before the other begins.
Records that are there are not measured again. On a machine where nothing else runs.
"""

import argparse
import csv
import shutil
import subprocess
import sys
from collections import defaultdict
from itertools import combinations
from math import log
from pathlib import Path
from statistics import median
from typing import Annotated, TypedDict, cast

from specbench.records.catalog import Catalog, digest, kept_files
from specbench.records.kept_form import ENDING
from specbench.records.numbers import Summary

ROOT = Path(__file__).parent.parent
FILE = ROOT / "docs" / "overlap.csv"


def measured(folder: Path, names: list[str]) -> list[Summary]:
    """The records of one round, in the order of their names."""
    kept = folder / "kept"
    kept.mkdir(parents=True, exist_ok=True)
    for file in kept_files(ROOT / "results"):
        if digest(file.name.removesuffix(ENDING)) in names:
            shutil.copy(file, kept)
    shutil.copytree(ROOT / "results" / "kept" / "prompts", kept / "prompts", dirs_exist_ok=True)
    subprocess.run([sys.executable, str(ROOT / "tools" / "measure_again.py"), "--runs", "3", str(folder)], check=True)
    heads = sorted(Catalog(folder, kept=False).heads, key=lambda head: head.run_id)
    return [cast(Summary, head.summary) for head in heads]


class Row(TypedDict):
    """A line of the file; `apart` and `furthest` are the differences of the two speedups of a pair, in percent."""

    pair: str
    pairs: int
    overlapping: int
    contended: Annotated[int, "records"]
    apart: Annotated[float, "the median"]
    furthest: float


def interval(summary: Summary) -> tuple[float, float, float]:
    """The speedup and the ends of its interval."""
    value, low, high = summary["speedup_measured"], summary["speedup_low"], summary["speedup_high"]
    assert value is not None and low is not None and high is not None, "no speedup was measured"
    return value, low, high


def overlap(one: Summary, other: Summary) -> bool:
    """Whether the intervals of two speedups have a value in common."""
    (_, low, high), (_, other_low, other_high) = interval(one), interval(other)
    return max(low, other_low) <= min(high, other_high)


def row(name: str, rounds: list[Summary]) -> Row:
    """One config, measured twice or more."""
    pairs = list(combinations(rounds, 2))
    apart = [100 * abs(log(interval(a)[0] / interval(b)[0])) for a, b in pairs]
    return {
        "pair": name,
        "pairs": len(pairs),
        "overlapping": sum(overlap(*pair) for pair in pairs),
        "contended": sum(bool(one["disturbed"]) for one in rounds),
        "apart": median(apart),
        "furthest": max(apart),
    }


def main(argv: list[str]) -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+", metavar="RUN")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each config (default 5)")
    given = parser.parse_args(argv)
    if given.rounds < 2:
        parser.error(f"--rounds {given.rounds}: two measurements are a pair")
    found = defaultdict[str, list[Summary]](list)
    for number in range(1, given.rounds + 1):
        for one in measured(given.folder / str(number), given.names):
            found[f"{one['target']} + {one['draft']}, T={one['temperature']:g}"].append(one)
    rows = [row(name, rounds) for name, rounds in found.items()]
    total: Row = {
        "pair": "all",
        "pairs": sum(one["pairs"] for one in rows),
        "overlapping": sum(one["overlapping"] for one in rows),
        "contended": sum(one["contended"] for one in rows),
        "apart": median(one["apart"] for one in rows),
        "furthest": max(one["furthest"] for one in rows),
    }
    with FILE.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, total, lineterminator="\n")
        writer.writeheader()
        writer.writerows([*rows, total])
    print(f"{FILE.name}: {total['overlapping']} of {total['pairs']} pairs overlap")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
