"""All drafts and rules in one table: acceptance, costs, tokens a pass, speed, and the loss of lossy rules.

The rows are those of `experiments/beyond.yaml`, each with the command that fills it, and what else was run, at the
gamma that was fastest.
"""

from typing import Any

import pandas as pd

from specbench.config.names import METRICS
from specbench.quality import quality_difference
from specbench.records.choice import remark
from specbench.records.frame import Records
from specbench.records.schema import Row
from specbench.report.comparison import ENTRY, among, comparable, fastest, planned
from specbench.report.paper import experiment, fill
from specbench.report.table import NONE, Table, interval, number
from specbench.report.tables import notes

GROUP = ["target", "task", "temperature"]
DIFFERENCE = ("quality_difference", "quality_difference_low", "quality_difference_high")
TAKEN = [
    "alpha", "alpha_low", "alpha_high", "alpha_rule", "alpha_rule_low", "alpha_rule_high", "c", "verify_cost",
    "tokens_per_pass", "speedup_measured", "speedup_low", "speedup_high", "lossless", "lossy", "total_variation",
    "quality_metric", "quality_baseline", "quality_speculative", *DIFFERENCE, "identical", "prompts",
    "hardware", "run_id", "fitting", "chosen_for",
]  # fmt: skip
TITLE = "Beyond the paper. Every draft and every rule"


def beyond(records: Records) -> Table:
    """Table of every draft and rule beyond the paper."""
    frame = comparable(records)
    plan = planned()
    entries = {tuple(row[key] for key in ENTRY) for row in plan}
    own = [tuple(row) not in entries for row in frame[ENTRY].itertuples(index=False)]
    rows = [cell for row in plan for cell in _filled(row, frame)]
    rows += [_ours(record) for _, record in fastest(frame[pd.Series(own, index=frame.index, dtype=bool)]).iterrows()]
    groups = list(dict.fromkeys(_group(row) for row in rows))
    rows.sort(key=lambda row: groups.index(_group(row)))  # stable: within a group the plan's own order
    rows = [_with_difference(row, records) for row in rows]
    values = pd.DataFrame(rows).reindex(columns=[*ENTRY, "gamma_said", "state", *TAKEN, "unproved", "command"])
    missing = bool((values["state"] == "no record").any())
    under = [
        "α: mean of β (Corollary 3.6); under the rule: the acceptance probability under match, onehot or a lossy rule, "
        "along the target's completions. v: verification cost. measured: decoding time per token, target alone over "
        "speculative. [95% interval, bootstrap over prompts]",
        "lossy: completions do not have the target's distribution; TV is the mean total variation per token, along the "
        "target's completions. quality: score of the run's completions and its paired difference from the target's; "
        "no difference is given between two samples of one distribution (lossless, T > 0). identical: share of "
        "completions equal to the target's, at T=0.",
        *notes.of_alpha(frame[frame["run_id"].isin(values["run_id"].dropna())]),
        *notes.of_choice(values, records),
        *notes.of_records(frame[frame["run_id"].isin(values["run_id"].dropna())]),
        *notes.of_precision(frame[frame["run_id"].isin(values["run_id"].dropna())]),
        *(_filling() if missing else []),
        *notes.silent("beyond"),
    ]
    return Table("beyond", TITLE, pd.DataFrame([_show(row) for row in rows]), values, under)


def _group(row: Row) -> tuple[object, ...]:
    return tuple(row[key] for key in GROUP)


def _filled(row: Row, frame: pd.DataFrame) -> list[Row]:
    found = among(frame, row)
    return [_ours(record) for _, record in found.iterrows()] or [row | {"state": "no record"}]


def _ours(record: "pd.Series[Any]") -> Row:
    wrong = not record["lossless"] and not record["lossy"]
    return {
        **{key: record[key] for key in (*ENTRY, "gamma_said")},
        "state": "not lossless" if wrong else "lossy" if record["lossy"] else "lossless",
        **{key: record.get(key) for key in TAKEN},
        "unproved": bool(record["unproved"]),
    }


def _filling() -> list[str]:
    plan = experiment("beyond")
    commands = "; ".join(f"`{command}`" for command in plan["own"])
    return [
        f"no record: the command in the row fills it, `make beyond` all of them; `{fill('beyond')}` "
        f"runs T5-XXL; for your own models: {commands}"
    ]


def _show(row: Row) -> Row:
    named = {
        "M_p": row["target"], "task": row["task"], "T": f"{row['temperature']:g}", "M_q": row["draft"],
        "rule": row["accept"], "γ": row["gamma_said"],
    }  # fmt: skip
    if row["state"] == "no record":
        empty = ("α", "under the rule", "c", "v", "tokens/pass", "measured", "lossless", "quality", "identical")
        cells = dict.fromkeys(empty, NONE) | dict.fromkeys(("α", "measured"), "no record")
        return named | cells | {"record": f"none: `{row['command']}`"}
    speed = interval(row["speedup_measured"], row["speedup_low"], row["speedup_high"])
    identical, under = row["identical"], row["alpha_rule"]
    own = under is not None and not pd.isna(under)
    return named | {
        "α": notes.alpha(row, row["alpha"], row["alpha_low"], row["alpha_high"]),
        "under the rule": interval(row["alpha_rule"], row["alpha_rule_low"], row["alpha_rule_high"]) if own else NONE,
        "c": number(row["c"], 3),
        "v": number(row["verify_cost"]),
        "tokens/pass": number(row["tokens_per_pass"]),
        "measured": "not lossless" if row["state"] == "not lossless" else speed,
        "lossless": _lossless(row),
        "quality": _quality(row),
        "identical": NONE if identical is None or pd.isna(identical) else f"{100 * identical:.0f}%",
        "record": notes.marks([row["run_id"]], False, remark(row["fitting"], row["chosen_for"])),
    }


def _lossless(row: Row) -> str:
    if row["state"] == "lossy":
        return f"lossy, TV {number(row['total_variation'], 3)}"
    return "not proved" if row["unproved"] is True else "yes" if row["state"] == "lossless" else "no"


def _quality(row: Row) -> str:
    """'BLEU 28.5 (-1.5 [-3.0, +0.1])'; without a difference for two samples of one distribution."""
    metric, ours = row["quality_metric"], row["quality_speculative"]
    if metric is None or pd.isna(metric):
        return NONE
    score = f"{METRICS[metric]} {number(ours, 1)}"
    alike = row["state"] == "lossless" and (row["temperature"] > 0 or row["identical"] == 1)
    less, low, high = (row[key] for key in DIFFERENCE)
    if alike or low is None or pd.isna(low):
        return score
    return f"{score} ({less:+.1f} [{low:+.1f}, {high:+.1f}])"


def _with_difference(row: Row, records: Records) -> Row:
    """The paired difference of scores, computed from the completions of records of older versions, which lack it."""
    low = row.get("quality_difference_low")
    if row["state"] == "no record" or not pd.isna(low) or row["quality_metric"] not in METRICS:
        return row
    prompts = records.whole(row["run_id"])["prompts"]
    ours, alone = ([prompt[way]["text"] for prompt in prompts] for way in ("speculative", "baseline"))
    less = quality_difference(row["quality_metric"], ours, alone, [prompt["reference"] or "" for prompt in prompts])
    return row | dict(zip(DIFFERENCE, (less.value, less.low, less.high), strict=True))
