"""How much wider an interval over processes is than one process's: docs/processes.csv from records with runs=N.

    specbench sweep experiment=processes results=processes
    python tools/between_processes.py processes
    make docs-numbers

`own`: half the width of one process's own interval, mean over its processes; `over`: half the width of the record's;
`between`: the standard deviation between processes; all in percent of the speedup. The last row has the medians.
"""

import csv
import sys
from pathlib import Path
from statistics import median

from specbench.analysis.several_processes import of_processes
from specbench.analysis.summary import speedups
from specbench.records.catalog import Catalog
from specbench.records.numbers import Speedups
from specbench.records.run_record import RunRecord

FILE = Path(__file__).parent.parent / "docs" / "processes.csv"
NUMBERS = ("speedup", "own", "over", "wider", "between")


def half_width(found: Speedups) -> float:
    """Half the width of the interval of the speedup, in percent of it."""
    value, low, high = found["speedup_measured"], found["speedup_low"], found["speedup_high"]
    assert value is not None and low is not None and high is not None
    return 50 * (high - low) / value


def row(record: RunRecord) -> dict[str, object]:
    """One pair."""
    summary = record["summary"]
    runs = [speedups(one) for one in of_processes(record["prompts"])]
    own, over = sum(map(half_width, runs)) / len(runs), half_width(summary)
    return {
        "pair": f"{summary['target']} + {summary['draft']}",
        "prompts": summary["prompts"],
        "speedup": summary["speedup_measured"],
        "own": own,
        "over": over,
        "wider": over / own,
        "between": 100 * summary["speedup_between"],
    }


def main(results: str) -> int:
    """Write the file from the records that were not disturbed; exit code 1 if there is none."""
    catalog = Catalog(results, kept=False)
    records = [catalog.whole(one["run_id"]) for one in catalog.rows() if one.get("speedup_by_process")]
    for one in records:
        if one["summary"].get("disturbed"):
            print(f"left out, disturbed; run it again with force=true: {one['run_id']}")
    records = [one for one in records if not one["summary"].get("disturbed")]
    if not records:
        print(f"{results}: no record of a run in several processes on a quiet machine")
        return 1
    rows = sorted(map(row, records), key=lambda one: str(one["pair"]))
    prompts = {int(str(one["prompts"])) for one in rows}
    middle = {name: median(float(str(one[name])) for one in rows) for name in NUMBERS}
    with FILE.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows([*rows, {"pair": f"median of {len(rows)} pairs", "prompts": max(prompts), **middle}])
    print(f"{FILE.name}: {len(rows)} pairs; an interval over processes is {middle['wider']:.2f} times as wide (median)")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python tools/between_processes.py RESULTS")
    raise SystemExit(main(sys.argv[1]))
