"""Table 5: alpha under lenience (A.5), and the speedup that Theorem 3.8 gives it.

Ours come from a record's `lenience`: a list of {lenience, alpha, alpha_low, alpha_high, strayed}. Old ones lack it.
"""

from typing import Any

import pandas as pd

from specbench import theory
from specbench.report.alphas import alphas
from specbench.report.paper import fill, label, paper
from specbench.report.records import Records
from specbench.report.table import NONE, Table, interval, number
from specbench.report.tables import notes

Row = dict[str, Any]


def table5(records: Records) -> Table:
    printed, frame = _printed(), alphas(records)
    rows = [_ours_beside(row, frame) for row in printed]
    theirs = {(row["target"], row["draft"], row["task"]) for row in printed}
    rows += _other_pairs(frame, theirs)
    values = pd.DataFrame(rows)
    shown = pd.DataFrame([_show(row) for row in rows])
    used = frame[frame["run_id"].isin(values["run_id"].dropna())]
    under = [
        "l: lenience; a drafted x is compared with p(x)/l instead of p(x), so no token gets more than p(x)/l. "
        "α(l) = E Σ min(p/l, q) at T=1.",
        "speed: Theorem 3.8. From the paper's α at its c = 0.015, with γ = 8 at T=0 and the best γ at T=1; "
        "from our α at our own c and the best γ.",
        "TV: mean total variation between the token that comes out under l and the target's own, along its text.",
        "The paper's speeds at T=1 do not follow from c = 0.015; those at T=0 do.",
        *notes.of_records(used),
        *notes.of_filling("table5", bool(values["run_id"].isna().any())),
        *notes.silent("table5"),
    ]
    return Table("table5", "Table 5. Acceptance under lenience", shown, values, under)


def _printed() -> list[Row]:
    """The paper's cells: its table at T = 1, then the T = 0 list of A.5's text."""
    source = paper()["table5"]
    text = source["text"]
    rows = []
    for row in source["rows"]:
        for index, lenience in enumerate(source["lenience"]):
            rows.append({
                "target": source["target"], "task": source["task"], "draft": row["draft"], "temperature": 1,
                "lenience": lenience, "alpha_paper": row["alpha"][index],
                "speed_paper": text["speedup_1"][index] if row["draft"] == text["draft"] else None,
            })  # fmt: skip
    for index, lenience in enumerate(source["lenience"]):
        rows.append({
            "target": source["target"], "task": source["task"], "draft": text["draft"], "temperature": 0,
            "lenience": lenience, "alpha_paper": text["alpha_0"][index], "speed_paper": text["speedup_0"][index],
        })  # fmt: skip
    for row in rows:
        if row["draft"] == text["draft"]:
            row["speed_theory"] = _speed(
                row["alpha_paper"], text["c"], text["gamma"] if row["temperature"] == 0 else None
            )
    return rows


def _speed(alpha: float, c: float, gamma: int | None = None) -> float:
    return theory.walltime_improvement(alpha, gamma or theory.optimal_gamma(alpha, c), c)


def _ours_beside(row: Row, frame: pd.DataFrame) -> Row:
    for record in _lenient_records(frame):
        if all(record[key] == row[key] for key in ("target", "task", "draft", "temperature")):
            return row | _ours(record, row["lenience"])
    return row | {"run_id": None, "command": fill("table5")}


def _other_pairs(frame: pd.DataFrame, theirs: set[tuple[str, str, str]]) -> list[Row]:
    rows = []
    for record in _lenient_records(frame):
        if (record["target"], record["draft"], record["task"]) not in theirs:
            named = {key: record[key] for key in ("target", "task", "draft", "temperature")}
            leniences = [cell["lenience"] for cell in record["lenience"]]
            rows += [named | {"lenience": lenience} | _ours(record, lenience) for lenience in leniences]
    return rows


def _lenient_records(frame: pd.DataFrame) -> list["pd.Series[Any]"]:
    """Records with alpha(l), one a pair and temperature: that with the most tokens."""
    has = frame[frame["lenience"].map(lambda cell: isinstance(cell, list)).astype(bool)]
    ranked = has.sort_values(["tokens", "created"], ascending=False, kind="stable")
    keys = ["target", "task", "draft", "temperature"]
    return [
        row
        for _, row in ranked.drop_duplicates(keys).sort_values(["target", "task", "temperature", "alpha"]).iterrows()
    ]


def _ours(record: "pd.Series[Any]", lenience: float) -> Row:
    cells: list[Row] = record["lenience"]
    for cell in cells:
        if cell["lenience"] == lenience:
            speed = _speed(cell["alpha"], record["c"]) if pd.notna(record["c"]) else None
            return cell | {
                "c": record["c"], "speed": speed, "run_id": record["run_id"], "simulated": record["simulated"],
            }  # fmt: skip
    return {"run_id": None, "command": fill("table5")}


def _show(row: Row) -> Row:
    in_paper = "alpha_paper" in row
    known = row.get("run_id") is not None
    return {
        "M_p": label(row["target"]) if in_paper else row["target"],
        "M_q": label(row["draft"]) if in_paper else row["draft"],
        "task": label(row["task"]),
        "T": f"{row['temperature']:g}",
        "l": f"{row['lenience']:g}",
        "α, paper": number(row.get("alpha_paper")),
        "α, ours": interval(row["alpha"], row.get("alpha_low"), row.get("alpha_high")) if known else "no record",
        "speed, paper": number(row.get("speed_paper"), 1),
        "by Thm 3.8, paper's α": number(row.get("speed_theory")),
        "by Thm 3.8, our α": number(row.get("speed")) if known else NONE,
        "TV, ours": number(row.get("strayed"), 3) if known else NONE,
        "record": notes.marks([row["run_id"]], bool(row["simulated"])) if known else f"none: `{row['command']}`",
    }
