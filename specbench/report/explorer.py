"""One page on which a reader moves α, γ, c, v, the target's step and the loop, and sees the effect on a speedup.

It begins from the numbers of a record and computes Theorem 3.8 and the calibrated speedup in the reader's browser
(`templates/explorer.js`). Everything is in one file, Plotly's library included: nothing is fetched.
"""

import json
from pathlib import Path

import pandas as pd
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from specbench.files import write_atomically
from specbench.records.catalog import digest
from specbench.records.frame import Records, rule_name
from specbench.records.run_record import Row
from specbench.report.html import environment, inline

MOST_GAMMA = 16  # the curves reach that far
NEEDED = ["gamma", "alpha", "c", "verify_cost", "overhead", "target_step_s", "speedup_measured"]


def rows(records: Records) -> list[Row]:
    """The records of chains with one γ and a measured speedup, as the page has them.

    alpha: under the record's rule. v_token: what each further token that is verified adds to v, (v - 1) / γ, in target
    steps. loop_ms: milliseconds per pass that the calibrated speedup has beside drafting and verifying. step_ms: of a
    target step.
    """
    usable = records.chains.dropna(subset=NEEDED)
    usable = usable[(usable["gamma"] > 0) & (usable["gamma"] <= MOST_GAMMA)]
    order = ["target", "task", "temperature", "accept", "draft", "gamma", "created"]
    return [_row(row) for row in usable.sort_values(order, kind="stable").to_dict("records")]


def _row(row: Row) -> Row:
    step_ms = 1000 * row["target_step_s"]
    under_rule = row.get("alpha_rule")
    return {
        "id": digest(row["run_id"]), "target": row["target"], "task": row["task"], "draft": row["draft"],
        "T": row["temperature"], "rule": rule_name(row) or "exact", "gamma": int(row["gamma"]),
        "alpha": row["alpha"] if under_rule is None or pd.isna(under_rule) else under_rule, "c": row["c"],
        "v_token": (row["verify_cost"] - 1) / row["gamma"], "step_ms": step_ms, "loop_ms": row["overhead"] * step_ms,
        "measured": row["speedup_measured"], "low": _or_none(row["speedup_low"]), "high": _or_none(row["speedup_high"]),
        "falls": bool(row["falls"]), "simulated": bool(row["simulated"]), "hardware": row["hardware"],
        "created": row["created"],
    }  # fmt: skip


def _or_none(value: float | None) -> float | None:
    return None if value is None or pd.isna(value) else value


def page(records: Records) -> str:
    """The page as HTML."""
    listed = rows(records)
    newest = max(range(len(listed)), key=lambda number: str(listed[number]["created"]), default=0)
    data = json.dumps({"rows": listed, "most": MOST_GAMMA, "first": newest}, allow_nan=False)
    return (
        environment()
        .get_template("explorer.html.j2")
        .render(
            css=inline("explorer.css"),
            script=inline("explorer.js"),
            plotly=Markup(get_plotlyjs()),
            data=Markup(data.replace("<", "\\u003c")),  # '<' in a name must not end the script
        )
    )


def write(records: Records, file: Path) -> None:
    """Write the page to `file`."""
    write_atomically(file, page(records), "--output FILE")
