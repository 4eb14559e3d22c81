"""The claims of README and of the paper's tables: command, time, tolerance, our value, verdict; for docs/paper.md.

README's claims are listed in experiments/paper.yaml, under `readme`; the paper's numbers are counted by the same lists
as in `specbench tables --score`. Values come from records; a claim without one is not measured.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.formatting import NONE, interval, markdown_table
from specbench.records.catalog import Catalog, digest
from specbench.records.frame import Records
from specbench.report.paper import experiment, fills, paper
from specbench.report.score import FORMULA, OURS, VERDICTS, Cell, cells, why

ROOT = Path(__file__).parent.parent
TITLES = ("claim", "command", "time, hardware", "tolerance", "ours", "verdict")
ROUNDING = "a number within the rounding of the printed inputs rounds to the printed number"
INTERVAL = (
    "our 95% interval holds a number that rounds to the printed number, and is at most 0.02 (α) or 5% (speedup) "
    "to either side"
)
NO_INTERVAL = "our number rounds to the printed number"
Claim = Mapping[str, Any]


def readme(results: Path, claims: Sequence[Claim] | None = None) -> str:
    """The table of README's claims from the records of `results`.

    Raises:
        ValueError: a claim names a value or a row that is not there.
        UserError: a claim names a run that is not there.
    """
    claims = paper()["readme"] if claims is None else claims
    return markdown_table(TITLES, [_of_readme(claim, Catalog(results)) for claim in claims])


def _of_readme(claim: Claim, catalog: Catalog) -> list[str]:
    takes = f"{claim['takes']}, {claim.get('hardware', '2 cores')}"
    told = [claim["claim"], f"`{claim['command']}`", takes, claim.get("tolerance", NONE)]
    if "why" in claim:
        return [*told, NONE, f"not measured: {claim['why']}"]
    value, low, high, source = _of_bench(claim) if "bench" in claim else _of_record(claim, catalog)
    holds = "least" not in claim or (value if low is None else low) >= claim["least"]
    ours = f"{value:.0%}" if claim.get("value") == "identical" else interval(value, low, high)
    return [*told, ours, f"{'measured' if 'least' not in claim else 'holds' if holds else 'does not hold'}: {source}"]


Value = tuple[float, float | None, float | None, str]


def _of_record(claim: Claim, catalog: Catalog) -> Value:
    run_id = catalog.find(claim["run"])
    summary = dict(catalog.whole(run_id)["summary"])
    name = claim["value"]
    value = summary.get(f"{name}_measured", summary.get(name))
    if not isinstance(value, int | float):
        raise ValueError(f"claim {claim['claim']!r}: {run_id} has no {name}")
    return float(value), summary.get(f"{name}_low"), summary.get(f"{name}_high"), f"record `{digest(run_id)}`"


def _of_bench(claim: Claim) -> Value:
    rows = json.loads((ROOT / claim["bench"]).read_text(encoding="utf-8"))["rows"]
    for row in rows:
        if row["what"] == claim["row"]:
            return row["ratio"], row["low"], row["high"], f"`{claim['bench']}`"
    raise ValueError(f"claim {claim['claim']!r}: {claim['bench']} has no row {claim['row']!r}")


def of_paper(results: Path) -> str:
    """The table of the paper's numbers, a row for each list, from the records of `results`."""
    scored = cells(Records(results))
    return markdown_table(TITLES, [_of_list(printed, scored) for printed in paper()["score"]["lists"]])


def _of_list(printed: Claim, scored: Sequence[Cell]) -> list[str]:
    table = str(printed["table"])
    own = [one for one in scored if one["table"] == table and one["quantity"] in printed["quantities"]]
    formula = all(one["run_id"] == FORMULA for one in own)
    name = "table5" if table == "A.5" else f"table{table}"
    commands = ["specbench tables --score"] if formula else fills(name)
    tolerance = ROUNDING if formula else NO_INTERVAL if printed["quantities"] == ["c"] else INTERVAL
    counted = Counter(one["verdict"] for one in own)
    ours = sum(counted[verdict] for verdict in OURS)
    verdicts = [
        f"{counted[verdict]} {'not measured' if verdict == 'not run' else verdict}{_because(printed, verdict)}"
        for verdict in VERDICTS if counted[verdict]
    ]  # fmt: skip
    return [
        f"{printed['name']}: {len(own)} numbers", "; ".join(f"`{command}`" for command in commands),
        "seconds, any" if formula else _takes(name), tolerance, f"{ours} of {len(own)}", "; ".join(verdicts),
    ]  # fmt: skip


def _because(printed: Claim, verdict: Any) -> str:
    reason = printed.get(verdict) or why(verdict)
    return f" ({reason})" if reason else ""


def _takes(name: str) -> str:
    rows = [row for row in experiment(name)["takes"] if not row["what"].endswith("-mini")]
    return "; ".join(
        f"{row['time']}{'' if row['measured'] else ' (an estimate)'}, {row['hardware']}" for row in rows[:1]
    )


def errata(_: Path) -> str:
    """The table of the paper's statements that need care, as experiments/paper.yaml lists them."""
    return markdown_table(("in the paper",), [[one] for one in paper()["traps"]])


TABLES: Mapping[str, Callable[[Path], str]] = {"readme": readme, "paper": of_paper, "errata": errata}
