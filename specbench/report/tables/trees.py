"""Chains and token trees compared: tokens a pass, predicted and measured, and speed; and published figures."""

import pandas as pd

from specbench.records.frame import Records
from specbench.records.schema import Row
from specbench.report.paper import fill, fill_twin
from specbench.report.table import NONE, Table, interval, number
from specbench.report.tables import notes
from specbench.report.tree_runs import published, tree_runs

TITLE = "Token trees. Tokens a pass and speed of chains and trees"
PUBLISHED = "published"
COLUMNS = [
    "M_p", "M_q", "task", "T", "shape", "n", "tokens/pass", "predicted", "c", "v", "calibrated", "measured", "record",
]  # fmt: skip


def trees(records: Records) -> Table:
    """Table of chains and trees: tokens a pass and speedups."""
    runs = tree_runs(records)
    rows = [_ours(row) for row in runs.to_dict("records")] or [_none()]
    values = pd.concat([runs.assign(whose="ours"), pd.DataFrame(published()).assign(whose=PUBLISHED)])
    under = [
        "n: tokens that the target reads in a pass, the last accepted token included; a chain of size n drafts γ = "
        "n − 1. predicted: for a tree by teacher forcing along the target's completions, ends included; for a chain "
        "by Eq. 1. v: cost of verifying n tokens, in target steps. calibrated: predicted tokens over the cost of "
        "the passes (a chain by position, as of lookup and heads: in-sample, since its acceptance is of the same "
        "passes). measured: decoding time per token, target alone over speculative. [95% interval, bootstrap "
        "over prompts]",
        "published: numbers from the cited papers, not measured here; –: not given there",
        *notes.of_records(runs),
        *([f"no record: `{fill('trees')}`, or `{fill_twin('trees')}` on the models that ship"] if runs.empty else []),
        *notes.silent("trees"),
    ]
    shown = pd.DataFrame([*rows, *map(_theirs, published())]).reindex(columns=COLUMNS).fillna(NONE)
    return Table("trees", TITLE, shown, values.reset_index(drop=True), under)


def _ours(row: Row) -> Row:
    measured = interval(row["speedup_measured"], row["speedup_low"], row["speedup_high"])
    rule = "" if row["accept"] == "exact" else f", {row['accept']}"
    return {
        "M_p": row["target"], "M_q": row["draft"], "task": row["task"], "T": f"{row['temperature']:g}",
        "shape": row["shape"] + rule, "n": str(row["size"]),
        "tokens/pass": interval(row["tokens_per_pass"], row["tokens_low"], row["tokens_high"]),
        "predicted": number(row["tokens_per_pass_predicted"]), "c": number(row["c"], 3),
        "v": number(row["verify_cost"]), "calibrated": number(row["speedup_calibrated"]),
        "measured": (measured + " not proved" * row["unproved"]) if row["lossless"] else "not lossless",
        "record": notes.marks([row["run_id"]], False),
    }  # fmt: skip


def _none() -> Row:
    return {"M_p": NONE, "shape": "no record", "record": f"none: `{fill_twin('trees')}`"}


def _theirs(row: Row) -> Row:
    place = [one for one in (row["task"], row["device"]) if one != NONE]
    return {
        "M_p": row["target"], "task": ", ".join(place) or NONE, "T": f"{row['temperature']:g}", "shape": row["method"],
        "tokens/pass": number(row["tokens_per_pass"]), "measured": number(row["speedup"]),
        "record": f"{PUBLISHED}: {row['source']}",
    }  # fmt: skip
