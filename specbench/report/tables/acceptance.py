"""Table 3: alpha of every pair at T = 0 and T = 1. The table `strata`: runs by prompt, context and position."""

import pandas as pd

from specbench.analysis.acceptance.strata import NO_CATEGORY, By, Stratum
from specbench.analysis.acceptance.strata import strata as divided
from specbench.config.draft_labels import alpha_is_of
from specbench.formatting import NONE, draft_name, interval, interval_of, number
from specbench.records.alphas import alphas
from specbench.records.cells import choose, remark
from specbench.records.frame import PAIR, Records
from specbench.records.run_record import Row
from specbench.report.measured import matching, plain_sampling
from specbench.report.paper import checkpoints, fill, label, paper
from specbench.report.table import Table
from specbench.report.tables import notes
from specbench.report.tables.shorter import MOST_OTHERS, of_left_out, of_rows, shorter
from specbench.report.views import alpha

TEMPERATURES = (0, 1)
ROW = ("target", "task", "draft")
MEASURED = [
    "alpha", "alpha_low", "alpha_high", "tokens", "prompts", "simulated", "run_id", "hardware", "own_weights",
    "fitting", "chosen_for",
]  # fmt: skip
CELL = [*ROW, "temperature", "alpha_paper", "state", *MEASURED, "alpha_of", "command"]


def table3(records: Records, most: int | None = MOST_OTHERS) -> Table:
    """Table 3: acceptance rates."""
    best = _most_tokens(alphas(records))
    printed = paper()["table3"]["rows"]
    theirs = [{key: row[key] for key in ROW} for row in printed]
    rows = printed + [row for row in best[list(ROW)].drop_duplicates().to_dict("records") if row not in theirs]
    cells = [_cell(row, temperature, best) for row in rows for temperature in TEMPERATURES]
    values = pd.DataFrame(cells, columns=CELL)
    each = [row | {"run_id": next(iter(matching(values, row, ROW)["run_id"].dropna()), None)} for row in rows]
    shown = [*rows[: len(printed)], *shorter(each[len(printed) :], records, most)]
    used = of_rows(best, [cell for row in shown for cell in matching(values, row, ROW).to_dict("records")])
    wanted = paper()["setup"]["alpha_tokens"]
    under = [
        f"α: mean of β over the tokens that M_p generated (Corollary 3.6); the paper used {wanted // 1000}K tokens. "
        "[95% interval over prompts]",
        *of_left_out("table3", rows, shown),
        *notes.of_alpha(used),
        *notes.foot("table3", used, values, records, bool((values["state"] == "no record").any())),
    ]
    return Table(
        "table3", "Table 3. Acceptance rates", pd.DataFrame([_show(row, values) for row in shown]), values, under
    )


def _most_tokens(frame: pd.DataFrame) -> pd.DataFrame:
    """For each pair and temperature the record over most tokens: alpha depends on neither gamma nor machine."""
    chosen = choose(plain_sampling(frame), [*ROW, "temperature"], ("tokens", "created"))
    return chosen.sort_values(["target", "task", "alpha"], kind="stable")


def _cell(row: Row, temperature: int, best: pd.DataFrame) -> Row:
    cell = {key: row[key] for key in ROW}
    cell |= {"temperature": temperature, "alpha_paper": row.get(f"alpha_{temperature}")}
    if row.get("public", True) is False:
        return cell | {"state": "not public"}
    found = matching(best, cell, [*ROW, "temperature"])
    if found.empty:
        return cell | {"state": "no record", "command": fill("table3", row["task"])}
    measured = {key: found.iloc[0][key] for key in MEASURED}
    return cell | {"state": "measured", "alpha_of": alpha_is_of(row["draft"])} | measured


def _show(row: Row, values: pd.DataFrame) -> Row:
    in_paper = "alpha_0" in row
    mine = matching(values, row, ROW)
    done = mine[mine["state"] == "measured"]
    public = row.get("public", True)
    ours = checkpoints(row | (done.iloc[0].to_dict() if len(done) else {}))
    cells: Row = {
        "task": label(row["task"]),
        "M_p, paper": label(row["target"]) if in_paper else NONE,
        "M_q, paper": label(row["draft"]) if in_paper else NONE,
        "M_p, ours": ours["target"] if public else NONE,
        "M_q, ours": ours["draft"] if public else NONE,
    }
    for cell in mine.to_dict("records"):
        cells[f"T={cell['temperature']}, paper"] = number(cell["alpha_paper"])
        cells[f"T={cell['temperature']}, ours"] = alpha(cell) if cell["state"] == "measured" else cell["state"]
    cells["tokens"] = " / ".join(f"{int(n)}" for n in done["tokens"]) or NONE
    if not done.empty:
        simulated = bool(done["simulated"].any())
        cells["record"] = ", ".join(
            notes.record(cell["run_id"], simulated, remark(cell["fitting"], cell["chosen_for"]))
            for cell in done.to_dict("records")
        )
    else:
        cells["record"] = f"none: `{mine['command'].iloc[0]}`" if mine["state"].iloc[0] == "no record" else "not public"
    return cells


BY: dict[By, str] = {
    "category": "kind of prompt",
    "length": "tokens of context",
    "position": "position in the completion",
}
MOST_RUNS = 4
COLUMNS = (
    "run_id", "by", "group", "prompts", "tokens", "alpha", "low", "high", "tokens_per_pass", "tokens_per_pass_low",
    "tokens_per_pass_high", "speedup", "speedup_low", "speedup_high",
)  # fmt: skip


def chosen_runs(records: Records) -> pd.DataFrame:
    """A few records: for each pair, task and temperature the record with the most prompts; among equals the newest.

    Records whose prompts have categories come first, then records with the most parts, then the best drafts' records.
    """
    newest = records.paper_runs.sort_values(["prompts", "created"], kind="stable", ascending=False)
    newest = newest.drop_duplicates(PAIR)
    counts = [_counts(records, run_id) for run_id in newest["run_id"]]
    ranked = newest.assign(
        parted=pd.Series([has for has, _ in counts], index=newest.index, dtype=bool),
        number=pd.Series([number for _, number in counts], index=newest.index, dtype=int),
    )
    order = ["parted", "number", "alpha"]
    return ranked.sort_values(order, kind="stable", ascending=False).drop(columns=order[:2]).head(MOST_RUNS)


def _counts(records: Records, run_id: str) -> tuple[bool, int]:
    """Whether the prompts of a run have categories, and into how many lengths and positions they fall."""
    prompts = records.whole(run_id)["prompts"]
    parts_of = [divided(prompts, by, with_speed=False) for by in BY if by != "category"]
    return any("category" in prompt for prompt in prompts), sum(map(len, parts_of))


LEAST_TOKENS = 200  # of a part that is shown: an α over fewer says little


def telling(values: pd.DataFrame) -> pd.DataFrame:
    """The parts with enough tokens to be shown; all if none has enough."""
    large = values[values["tokens"] >= LEAST_TOKENS]
    return values if large.empty else large


def parts(records: Records, chosen: pd.DataFrame) -> pd.DataFrame:
    """A row for each part of each run of `chosen`, with 95% intervals over prompts."""
    rows = [row for run_id in chosen["run_id"] for row in _of_run(records, run_id)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _of_run(records: Records, run_id: str) -> list[Row]:
    record = records.whole(run_id)
    timed = record["summary"]["speedup_measured"] is not None
    rows: list[Row] = []
    for by in BY:
        found = divided(record["prompts"], by, timed)
        if {one.name for one in found} <= {NO_CATEGORY}:
            continue
        rows += [{"run_id": run_id, "by": by} | _part(one) for one in found]
    return [row for row in rows if row["alpha"] == row["alpha"]]


def _part(one: Stratum) -> Row:
    row: Row = {
        "group": one.name, "prompts": one.prompts, "tokens": one.tokens,
        "alpha": one.alpha.value, "low": one.alpha.low, "high": one.alpha.high,
    }  # fmt: skip
    for name, found in (("tokens_per_pass", one.tokens_per_pass), ("speedup", one.speedup)):
        bounds = (None, None, None) if found is None else (found.value, found.low, found.high)
        row |= dict(zip((name, f"{name}_low", f"{name}_high"), bounds, strict=True))
    return row


SHOWN = ("task", "M_p", "M_q", "T", "γ", "by", "part", "prompts", "tokens", "α", "tokens/pass", "measured", "record")


def strata(records: Records) -> Table:
    """Table of runs by kind of prompt, length of context and position."""
    chosen = chosen_runs(records)
    values = parts(records, chosen)
    runs = {row["run_id"]: row for row in chosen.to_dict("records")}
    shown = [_show_part(row, runs[row["run_id"]]) for row in telling(values).to_dict("records")]
    under = [
        f"α: over the tokens of that part; parts of fewer than {LEAST_TOKENS} are left out. position: of a token in "
        "the completion; a pass counts at the position of its first token. [95% interval over prompts; none "
        "for a single prompt]. `specbench results --by category`, `--by length` and `--by position` print the parts of "
        "every run",
        *notes.of_records(chosen),
        *notes.of_filling("strata", values.empty),
    ]
    title = "Strata. α by kind of prompt, length of context and position"
    return Table("strata", title, pd.DataFrame(shown, columns=list(SHOWN)), values, under)


def _show_part(row: Row, run: Row) -> Row:
    return {
        "task": label(run["task"]), "M_p": run["target"], "M_q": draft_name(run["draft"]),
        "T": f"{run['temperature']:g}",
        "γ": run["gamma_said"], "by": BY[row["by"]], "part": row["group"], "prompts": str(row["prompts"]),
        "tokens": str(row["tokens"]), "α": interval(row["alpha"], row["low"], row["high"]),
        "tokens/pass": interval_of(row, "tokens_per_pass"),
        "measured": interval_of(row, "speedup"),
        "record": notes.record(row["run_id"]),
    }  # fmt: skip
