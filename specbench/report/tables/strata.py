"""Results of a few runs by kind of prompt, length of context and position in the completion."""

import pandas as pd

from specbench.records.frame import Records
from specbench.records.schema import Row
from specbench.report.paper import label
from specbench.report.parts import BY, chosen_runs, parts
from specbench.report.table import Table, interval
from specbench.report.tables import notes

SHOWN = ("task", "M_p", "M_q", "T", "γ", "by", "part", "prompts", "tokens", "α", "tokens/pass", "measured", "record")


def strata(records: Records) -> Table:
    """Table of runs by kind of prompt, length of context and position."""
    chosen = chosen_runs(records)
    values = parts(records, chosen)
    runs = {row["run_id"]: row for row in chosen.to_dict("records")}
    shown = [_show(row, runs[row["run_id"]]) for row in values.to_dict("records")]
    under = [
        "α: over the tokens of that part. position: of a token in the completion; a pass counts at the position of its "
        "first token. [95% interval, bootstrap over prompts; none for a single prompt]. `specbench results --by "
        "category`, `--by length` and `--by position` print the parts of every run",
        *notes.of_records(chosen),
        *notes.of_filling("strata", values.empty),
    ]
    return Table("strata", "Strata. Runs in parts", pd.DataFrame(shown, columns=list(SHOWN)), values, under)


def _show(row: Row, run: Row) -> Row:
    return {
        "task": label(run["task"]), "M_p": run["target"], "M_q": run["draft"], "T": f"{run['temperature']:g}",
        "γ": run["gamma_said"], "by": BY[row["by"]], "part": row["group"], "prompts": str(row["prompts"]),
        "tokens": str(row["tokens"]), "α": interval(row["alpha"], row["low"], row["high"]),
        "tokens/pass": interval(row["tokens_per_pass"], row["tokens_per_pass_low"], row["tokens_per_pass_high"]),
        "measured": interval(row["speedup"], row["speedup_low"], row["speedup_high"]),
        "record": notes.marks([row["run_id"]], False),
    }  # fmt: skip
