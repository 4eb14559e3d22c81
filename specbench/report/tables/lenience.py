"""Table 5: alpha under lenience (A.5), the speedup predicted from it by Theorem 3.8, and the measured speedup.

alpha(l) comes from a record's `lenience`, which any run along the target's completion has: a list of {lenience, alpha,
alpha_low, alpha_high, total_variation}. Old records lack it. Speeds and completions come from runs with accept=lenient.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from specbench import theory
from specbench.config.draft_labels import alpha_is_of
from specbench.config.schema import METRICS
from specbench.formatting import NONE, interval_of, number, share
from specbench.records.alphas import alphas
from specbench.records.cells import SIZE_THEN_SPEED, choose, remark
from specbench.records.frame import MACHINE, Records, measured
from specbench.records.run_record import Row
from specbench.report.measured import matching, plain_sampling
from specbench.report.paper import checkpoints, fill, label, paper
from specbench.report.table import Table
from specbench.report.tables import notes
from specbench.report.tables.shorter import MOST_OTHERS, RUN_IDS, of_left_out, shorter
from specbench.report.views import alpha as said_alpha

KEYS = ["target", "task", "draft", "temperature"]
TIMED = {
    *KEYS, "top_k", "top_p", "accept", "gamma", *MACHINE, *SIZE_THEN_SPEED,
    "run_id", "speedup_low", "speedup_high", "lossy", "tokens_per_pass",
    "quality_metric", "quality_baseline", "quality_speculative", "identical", "passes_run",
}  # fmt: skip


def table5(records: Records, most: int | None = MOST_OTHERS) -> Table:
    """Table 5: acceptance and speed under lenience."""
    printed, frame, runs = _printed(), alphas(records), records.chains
    lenient, timed = _lenient_records(frame), _timed(runs)
    rows = [_with_ours(row, lenient) for row in printed]
    theirs = {(row["target"], row["draft"], row["task"]) for row in printed}
    rows += _other_pairs(lenient, theirs)
    rows = [row | _measured(row, timed) for row in rows]
    values = pd.DataFrame(rows)
    shown = [*rows[: len(printed)], *shorter(rows[len(printed) :], records, most)]
    run_ids = {row.get(name) for row in shown for name in RUN_IDS}
    # A record may be in both; the run's knows whether it is lossy.
    used = pd.concat([runs[runs["run_id"].isin(run_ids)], frame[frame["run_id"].isin(run_ids)]])
    under = [
        "l: lenience; a drafted x is compared with p(x)/l instead of p(x), so no token's probability exceeds p(x)/l. "
        "α(l) = E Σ min(p/l, q) at T=1.",
        "speed: Theorem 3.8. From the paper's α at its c = 0.015, with γ = 8 at T=0 and the best γ at T=1; "
        "from our α at our own c and the best γ; none for drafts whose acceptance falls with the position, which "
        "Theorem 3.8 does not have: Table 4 predicts their runs by position.",
        "The speed by our α takes v to be 1 and leaves the loop out; the measured speed has both in it. Where passes "
        "run in Python it may be less than half of the other, and neither tests the other.",
        *notes.of_passes(used),
        "measured: decoding time per token, target alone over a run with accept=lenient (l = 1: Algorithm 1), at the γ "
        "given; lossy where l < 1. quality: scores of the target's completions and of the run's. identical: share of "
        "completions equal to the target's, at T=0.",
        "TV: mean total variation between the next token's distribution under l and the target's, along the target's "
        "completions.",
        "The paper's speeds at T=1 do not follow from c = 0.015; those at T=0 do.",
        *of_left_out("table5", rows, shown),
        *notes.of_alpha(used),
        *notes.foot("table5", used, values, records, bool(values[["run_id", "run_measured"]].isna().any(axis=None))),
    ]
    return Table(
        "table5", "Table 5. Acceptance under lenience", pd.DataFrame([_show(row) for row in shown]), values, under
    )


def _printed() -> list[Row]:
    """The paper's cells: its table at T = 1, then the T = 0 list of A.5's text."""
    source = paper()["table5"]
    text, rows = source["text"], list[Row]()
    lists = [(row["draft"], 1, row["alpha"], text["speedup_1"]) for row in source["rows"]]
    for draft, temperature, printed, speeds in [*lists, (text["draft"], 0, text["alpha_0"], text["speedup_0"])]:
        for lenience, alpha, speed in zip(source["lenience"], printed, speeds, strict=True):
            known = draft == text["draft"]  # the only draft whose speeds are printed
            rows.append({
                "target": source["target"], "task": source["task"], "draft": draft, "temperature": temperature,
                "lenience": lenience, "alpha_paper": alpha, "speed_paper": speed if known else None,
            } | ({"speed_theory": speed_by_theory(alpha, temperature)} if known else {}))  # fmt: skip
    return rows


def speed_by_theory(alpha: float, temperature: float) -> float:
    """Theorem 3.8 at the c of A.5: with the paper's gamma at T = 0, and the best at T = 1."""
    text = paper()["table5"]["text"]
    return _speed(alpha, text["c"], text["gamma"] if temperature == 0 else None)


def _speed(alpha: float, c: float, gamma: int | None = None) -> float:
    return theory.walltime_improvement(alpha, gamma or theory.optimal_gamma(alpha, c), c)


def _with_ours(row: Row, lenient: "Sequence[pd.Series[Any]]") -> Row:
    for record in lenient:
        if all(record[key] == row[key] for key in KEYS):
            return row | _ours(record, row["lenience"])
    return row | {"run_id": None, "command": fill("table5")}


def _other_pairs(lenient: "Sequence[pd.Series[Any]]", theirs: set[tuple[str, str, str]]) -> list[Row]:
    rows = []
    for record in lenient:
        if (record["target"], record["draft"], record["task"]) not in theirs:
            named = {key: record[key] for key in KEYS}
            leniences = [cell["lenience"] for cell in record["lenience"]]
            rows += [named | {"lenience": lenience} | _ours(record, lenience) for lenience in leniences]
    return rows


def _lenient_records(frame: pd.DataFrame) -> list["pd.Series[Any]"]:
    """Records with alpha(l): for each pair and temperature the record over most tokens."""
    has = frame["lenience"].map(lambda cell: isinstance(cell, list)).astype(bool)
    chosen = choose(plain_sampling(frame[has]), KEYS, ("tokens", "created"))
    return [row for _, row in chosen.sort_values(["target", "task", "temperature", "alpha"]).iterrows()]


def _ours(record: "pd.Series[Any]", lenience: float) -> Row:
    cells: list[Row] = record["lenience"]
    for cell in cells:
        if cell["lenience"] == lenience:
            known = pd.notna(record["c"]) and not record["falls"]  # Theorem 3.8 has one alpha for all positions
            speed = _speed(cell["alpha"], record["c"]) if known else None
            return cell | {
                "alpha_of": alpha_is_of(record["draft"]), "falls": record["falls"],
                "c": record["c"], "speed": speed, "run_id": record["run_id"], "simulated": record["simulated"],
                "own_weights": record["own_weights"],
                "alpha_fitting": record["fitting"], "alpha_chosen_for": record["chosen_for"],
            }  # fmt: skip
    return {"run_id": None, "command": fill("table5")}


def _timed(runs: pd.DataFrame) -> pd.DataFrame:
    """The measured runs at a fixed gamma without top-k and top-p, and of their columns only those that are shown."""
    found = measured(runs)[[column for column in runs if column in TIMED]]
    return plain_sampling(found.dropna(subset=["speedup_measured", "gamma"]).astype({"accept": str}))


def _measured(row: Row, timed: pd.DataFrame) -> Row:
    """The fastest of the runs with this lenience over the most prompts; at l = 1 at a gamma of the lenient runs."""
    lenience = row["lenience"]
    found = matching(timed, row, KEYS)
    if lenience == 1:
        gammas = set(found[found["accept"].str.startswith("lenient")]["gamma"])
        found = found[(found["accept"] == "exact") & (found["gamma"].isin(gammas) if gammas else True)]
    else:
        found = found[found["accept"] == f"lenient l={lenience:g}"]
    if found.empty:
        return {"run_measured": None, "command": fill("table5")}
    each = choose(found, ["gamma", *MACHINE])
    best = choose(each, ["accept"], SIZE_THEN_SPEED).iloc[0]
    return {
        "fitting": best["fitting"], "chosen_for": best["chosen_for"],
        "run_measured": best["run_id"], "gamma": best["gamma"], "measured": best["speedup_measured"],
        "measured_low": best["speedup_low"], "measured_high": best["speedup_high"], "lossy": best["lossy"],
        "tokens_per_pass": best["tokens_per_pass"], "quality_metric": best.get("quality_metric"),
        "quality_alone": best.get("quality_baseline"), "quality_under": best.get("quality_speculative"),
        "identical": best.get("identical"), "passes_run": best["passes_run"],
    }  # fmt: skip


def _speed_measured(row: Row) -> str:
    return f"{interval_of(row, 'measured')}, γ={row['gamma']:g}" + (" (lossy)" if row["lossy"] else "")


def _quality(row: Row) -> str:
    metric = row.get("quality_metric")
    if metric is None or pd.isna(metric):
        return NONE
    return f"{METRICS[metric]} {number(row['quality_alone'], 1)} / {number(row['quality_under'], 1)}"


def _mark(row: Row, key: str, before: str) -> str:
    why = remark(row.get(f"{before}fitting"), row.get(f"{before}chosen_for"))
    return notes.record(row[key], bool(row.get("simulated")), why)


def _show(row: Row) -> Row:
    in_paper = "alpha_paper" in row
    known, ran = row.get("run_id") is not None, row.get("run_measured") is not None
    said = [_mark(row, "run_id", "alpha_")] if known else []
    said += [_mark(row, "run_measured", "")] if ran and row["run_measured"] != row["run_id"] else []
    said += [] if known and ran else [f"none: `{row['command']}`"]
    ours = checkpoints(row)
    return {
        "task": label(row["task"]),
        "M_p, paper": label(row["target"]) if in_paper else NONE,
        "M_q, paper": label(row["draft"]) if in_paper else NONE,
        "M_p, ours": ours["target"],
        "M_q, ours": ours["draft"],
        "T": f"{row['temperature']:g}",
        "l": f"{row['lenience']:g}",
        "α, paper": number(row.get("alpha_paper")),
        "α, ours": said_alpha(row) if known else "no record",
        "speed, paper": number(row.get("speed_paper"), 1),
        "by Thm 3.8, paper's α": number(row.get("speed_theory")),
        "by Thm 3.8, our α": number(row.get("speed")) if known else NONE,
        "passes": row["passes_run"] if ran else NONE,
        "measured, ours": _speed_measured(row) if ran else "no record",
        "quality, target alone / under l": _quality(row),
        "identical": share(row.get("identical")),
        "TV, ours": number(row.get("total_variation"), 3) if known else NONE,
        "record": "; ".join(said),
    }
