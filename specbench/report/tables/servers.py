"""A table of other engines' servers: speedup, acceptance, times and verdict, apart from our own engine's runs."""

from typing import cast

import pandas as pd

from specbench.analysis.columns import milliseconds
from specbench.formatting import NONE, interval_of, number
from specbench.records.catalog import digest
from specbench.records.frame import Records
from specbench.records.served import ServedSummary
from specbench.report.served_text import marked
from specbench.report.table import Table

TAKEN = [
    "run_id", "engine", "flags", "target", "draft", "task", "temperature", "gamma", "batch", "rate", "prompts",
    "tokens", "speedup_measured", "speedup_low", "speedup_high", "speedup_end_to_end", "alpha", "alpha_low",
    "alpha_high", "tokens_per_pass", "drafted", "accepted", "rejected", "ttft_s_baseline", "ttft_s", "tpot_s_baseline",
    "tpot_s",
    "tokens_per_second_baseline", "tokens_per_second", "verdict", "verified", "lossless", "hardware", "created",
]  # fmt: skip
UNDER = (
    "speedup: time of a token after the first, without the draft over with it, as seen from outside; [95% interval "
    "over prompts; with several requests at once or a rate over blocks of them]. α and τ by the server's own counts. A "
    "speedup that is not verified may belong to other completions"
)


def servers(records: Records) -> Table:
    """Table of measured servers."""
    values = records.served.reindex(columns=TAKEN)
    shown = pd.DataFrame([_show(row) for row in values.to_dict("records")])
    under = [UNDER] if len(values) else ["no record of a server: specbench server makes one"]
    return Table("servers", "Servers of other engines. Without a draft and with one", shown, values, under)


def _show(row: dict[str, object]) -> dict[str, str]:
    def told(name: str, form: str = "") -> str:
        value = row[name]
        return NONE if pd.isna(value) else format(value, form)

    load = f"{row['rate']:g}/s" if pd.notna(row["rate"]) else told("batch")
    times = [None if pd.isna(row[name]) else milliseconds(row[name]) for name in ("ttft_s", "tpot_s")]  # type: ignore[arg-type]
    return {
        "engine": str(row["engine"]), "target": str(row["target"]), "draft": str(row["draft"]),
        "task": str(row["task"]),
        "T": told("temperature", "g"), "γ": told("gamma", "g"), "load": load, "prompts": told("prompts"),
        "speedup": interval_of(row, "speedup_measured", "speedup"), "α": interval_of(row, "alpha", digits=3),
        "τ": number(row["tokens_per_pass"]), "first, ms": times[0] or NONE, "token, ms": times[1] or NONE,  # type: ignore[arg-type]
        "verdict": marked(cast(ServedSummary, row)),
        "record": digest(str(row["run_id"])),
    }  # fmt: skip
