"""Table 3: alpha of every pair at T = 0 and T = 1."""

import pandas as pd

from specbench.config.names import alpha_is_of
from specbench.records.alphas import alphas
from specbench.records.choice import choose, remark
from specbench.records.frame import Records
from specbench.records.schema import Row
from specbench.report.paper import checkpoints, fill, label, paper
from specbench.report.table import NONE, Table, number
from specbench.report.tables import notes

TEMPERATURES = (0, 1)
MEASURED = [
    "alpha", "alpha_low", "alpha_high", "tokens", "prompts", "simulated", "run_id", "hardware", "own_weights",
    "fitting", "chosen_for",
]  # fmt: skip
CELL = ["target", "task", "draft", "temperature", "alpha_paper", "state", *MEASURED, "alpha_of", "command"]


def table3(records: Records) -> Table:
    """Table 3: acceptance rates."""
    best = _most_tokens(alphas(records))
    printed = paper()["table3"]["rows"]
    theirs = {(row["target"], row["task"], row["draft"]) for row in printed}
    pairs = best[["target", "task", "draft"]].drop_duplicates().itertuples(index=False, name=None)
    rows = printed + [dict(zip(("target", "task", "draft"), pair, strict=True)) for pair in pairs if pair not in theirs]
    cells = [_cell(row, temperature, best) for row in rows for temperature in TEMPERATURES]
    values = pd.DataFrame(cells, columns=CELL)
    shown = pd.DataFrame([_show(row, values) for row in rows])
    used = best[best["run_id"].isin(values["run_id"].dropna())]
    wanted = paper()["setup"]["alpha_tokens"]
    under = [
        f"α: mean of β over the tokens that M_p generated (Corollary 3.6); the paper used {wanted // 1000}K tokens. "
        "[95% interval, bootstrap over prompts]",
        *notes.of_alpha(used),
        *notes.of_checkpoints(),
        *notes.of_choice(values, records),
        *notes.of_records(used),
        *notes.of_precision(used),
        *notes.of_filling("table3", bool((values["state"] == "no record").any())),
        *notes.silent("table3"),
    ]
    return Table("table3", "Table 3. Acceptance rates", shown, values, under)


def _most_tokens(frame: pd.DataFrame) -> pd.DataFrame:
    """One record a pair and temperature: alpha depends on neither gamma nor machine, so that with the most tokens."""
    plain = frame[frame["top_k"].isna() & frame["top_p"].isna()]
    chosen = choose(plain, ["target", "task", "draft", "temperature"], ("tokens", "created"))
    return chosen.sort_values(["target", "task", "alpha"], kind="stable")


def _cell(row: Row, temperature: int, best: pd.DataFrame) -> Row:
    cell = {key: row[key] for key in ("target", "task", "draft")} | {"temperature": temperature}
    cell["alpha_paper"] = row.get(f"alpha_{temperature}")
    if row.get("public", True) is False:
        return cell | {"state": "not public"}
    found = best[
        (best["target"] == row["target"])
        & (best["task"] == row["task"])
        & (best["draft"] == row["draft"])
        & (best["temperature"] == temperature)
    ]
    if found.empty:
        return cell | {"state": "no record", "command": fill("table3", row["task"])}
    measured = {key: found.iloc[0][key] for key in MEASURED}
    return cell | {"state": "measured", "alpha_of": alpha_is_of(row["draft"])} | measured


def _show(row: Row, values: pd.DataFrame) -> Row:
    in_paper = "alpha_0" in row
    mine = values[
        (values["target"] == row["target"]) & (values["task"] == row["task"]) & (values["draft"] == row["draft"])
    ]
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
    for _, cell in mine.iterrows():
        t = f"T={cell['temperature']}"
        cells[f"{t}, paper"] = number(cell["alpha_paper"])
        measured = cell["state"] == "measured"
        cells[f"{t}, ours"] = (
            notes.alpha(row, cell["alpha"], cell["alpha_low"], cell["alpha_high"]) if measured else cell["state"]
        )
    cells["tokens"] = " / ".join(f"{int(n)}" for n in done["tokens"]) or NONE
    if not done.empty:
        said = [remark(cell["fitting"], cell["chosen_for"]) for cell in done.to_dict("records")]
        cells["record"] = ", ".join(
            notes.marks([run_id], bool(done["simulated"].any()), why)
            for run_id, why in zip(done["run_id"], said, strict=True)
        )
    else:
        cells["record"] = f"none: `{mine['command'].iloc[0]}`" if mine["state"].iloc[0] == "no record" else "not public"
    return cells
