"""Runs and recommendations over contexts: alpha, c, v, the speed of each gamma, and where a draft begins to pay."""

from collections.abc import Sequence
from itertools import groupby
from statistics import fmean, median
from typing import Any, cast

from specbench import theory
from specbench.analysis.costs.mean_costs import draft_cost, verify_cost
from specbench.analysis.forecast.context_lengths import AtContext, beyond, said
from specbench.config.draft_labels import falls_with_position
from specbench.errors import UserError
from specbench.formatting import NONE, Column, span, titles
from specbench.records.catalog import Catalog, digest
from specbench.records.choosing import RecommendDocument, ValidateDocument
from specbench.records.run_record import Row, RunRecord
from specbench.records.store import config_digest
from specbench.report.console import plain_table, wide_console

FREE = ("context", "gamma", "limit", "warmup")  # in which runs that are compared may differ
GROUP = ("target", "draft", "task", "temperature", "batch")
STEP = Column("target_step_s", "step", lambda row: f"{1000 * row['target_step_s']:.2f} ms")
CONTEXT, TOKENS = Column("context", "context", ",d"), Column("tokens", "tokens", ",.0f")
ALPHA = Column("alpha", "α", ".3f", ends="alpha")
OF_RUNS = (
    CONTEXT, TOKENS, Column("gamma", "γ", lambda row: str(row["gamma"] or NONE)), STEP, ALPHA,
    Column("c", "c", ".3f", ends="c"), Column("verify_cost", "v", ends="verify_cost"),
    Column("tokens_per_pass", "tok/pass"), Column("speedup", "speedup", ends="speedup"),
    Column("run_id", "run", lambda row: digest(row["run_id"]) + (" CONTENDED" if row["disturbed"] else "")),
)  # fmt: skip
OF_DOCUMENTS = (
    Column("draft", "draft", lambda row: row["draft"] + ("" if row["batch"] == 1 else f", batch {row['batch']}")),
    CONTEXT, TOKENS, Column("gamma", "γ", ""), STEP, ALPHA, Column("c", "c", ".3f"), Column("verify_cost", "v"),
    Column("estimated", "calibrated"),
    Column("interval", "95%", lambda row: span(row["estimated_low"], row["estimated_high"], ".2f")),
    Column("measured", "measured"),
)  # fmt: skip


def rows_by_context(catalog: Catalog, run: str | None) -> list[Row]:
    """A row for each chain of `catalog` with a context; chains that differ only in `FREE` follow each other.

    `run`: only chains that differ so from this run. Raises UserError if it has no context.
    """
    heads = [head for head in catalog.heads if head.summary.get("context") and head.summary.get("tree") is None]
    of_run = {head.run_id: config_digest(head.config, *FREE) for head in heads}
    if run is not None:
        wanted = catalog.find(run)
        if wanted not in of_run:
            raise UserError(f"--run {run}: this run has no context=; leave --run out, or run it with context=4k")
        of_run = {run_id: digest for run_id, digest in of_run.items() if digest == of_run[wanted]}
    rows = [{"setting": setting} | _row(catalog.whole(run_id)) for run_id, setting in of_run.items()]
    return sorted(rows, key=lambda row: (row["setting"], row["context"], row["gamma"] or 0))


def _row(record: RunRecord) -> Row:
    summary, prompts = record["summary"], record["prompts"]
    halves = [len(prompt["baseline"].tokens) / 2 for prompt in prompts]
    row: Row = {"run_id": record["run_id"]} | {name: summary.get(name) for name in GROUP} | {
        "batch": summary.get("batch", 1), "context": summary.get("context"), "gamma": summary["gamma"],
        "prompts": summary["prompts"], "simulated": summary["simulated"], "disturbed": summary.get("disturbed", False),
        "tokens": fmean(prompt["prompt_tokens"] + half for prompt, half in zip(prompts, halves, strict=True)),
        "target_step_s": summary["target_step_s"], "overhead": summary["overhead"],
        "tokens_per_pass": summary["tokens_per_pass"],
        "alpha": summary["alpha"], "alpha_low": summary["alpha_low"], "alpha_high": summary["alpha_high"],
        "speedup": summary["speedup_measured"], "speedup_low": summary["speedup_low"],
        "speedup_high": summary["speedup_high"],
    }  # fmt: skip
    costs = {
        "c": draft_cost(prompts),
        "verify_cost": verify_cost(prompts),
    }
    for name, one in costs.items():
        row |= {name: one and one.value, f"{name}_low": one and one.low, f"{name}_high": one and one.high}
    return row


def draw_runs(rows: Sequence[Row]) -> None:
    """Print each setting: its contexts and gammas, the best gamma of each context, and the forecast."""
    console = wide_console(160)
    if not rows:
        console.print("no run with a context; specbench sweep context=1k,2k,4k measures some")
    for _, group in groupby(rows, key=lambda row: row["setting"]):
        own = list(group)
        first = own[0]
        batch = "" if first["batch"] == 1 else f", batch {first['batch']}"
        simulated = "SIMULATED, " if first["simulated"] else ""
        console.print(
            f"{first['target']} with draft {first['draft']} on {first['task']}: {simulated}T={first['temperature']:g}"
            f"{batch}"
        )
        table = plain_table(("", *titles(OF_RUNS)), left=("", "run"))
        for _, same in groupby(own, key=lambda row: row["context"]):
            at = list(same)
            best = max((row for row in at), key=lambda row: row["speedup"] or 0.0)
            for row in at:
                leads = "→" if row is best and row["speedup"] else ""
                table.add_row(leads, *(one.text(row) for one in OF_RUNS))
        console.print(table)
        for line in said(str(first["draft"]), _measured(own)):
            console.print(f"· {line}")
        if any(row["disturbed"] for row in own):
            console.print("· CONTENDED runs are in these costs; run them again with force=true when nothing else runs")


def rows_of_documents(documents: Sequence[RecommendDocument | ValidateDocument]) -> list[Row]:
    """A row for each candidate, gamma and context of recommendations or validations, by candidate."""
    rows: list[Row] = []
    for document in documents:
        step_s = median(step for one in document["rounds"] for step in one.steps_s)
        batch = min(cast(Row, row).get("batch", 1) for row in document["rows"])  # whose steps the document holds
        for row in document["rows"]:
            if row.get("batch", 1) != batch:
                continue
            cost, measured = row["cost"], cast(Row, row).get("measured")
            made: Row = {
                "draft": row["candidate"], "batch": batch, "context": document.get("context", 0),
                "tokens": document.get("context_tokens", 0.0), "gamma": row["gamma"], "tree": row.get("tree"),
                "target_step_s": step_s, "alpha": row["alpha"].value, "alpha_low": row["alpha"].low,
                "alpha_high": row["alpha"].high, "c": cost.c, "verify_cost": cost.verify_cost,
                "overhead": cost.overhead, "estimated": row["estimated"].value,
                "estimated_low": row["estimated"].low, "estimated_high": row["estimated"].high,
                "measured": None if measured is None else measured.value,
            }  # fmt: skip
            rows.append(made)
    return sorted(rows, key=lambda row: (row["draft"], row["batch"], row["context"], -row["estimated"]))


def draw_documents(rows: Sequence[Row]) -> None:
    """Print the best gamma of each candidate at each context, and the forecasts from all gammas."""
    console = wide_console(160)
    measured = any(row["measured"] is not None for row in rows)
    told = OF_DOCUMENTS if measured else OF_DOCUMENTS[:-1]
    table = plain_table(titles(told), left=("draft",), title="over contexts")
    for _, same in groupby(rows, key=lambda row: (row["draft"], row["batch"], row["context"])):
        best = next(same)
        table.add_row(*(one.text(best) for one in told))
    console.print(table)
    for (draft, _), group in groupby(rows, key=lambda row: (row["draft"], row["batch"])):
        chains = _measured([row for row in group if row["tree"] is None])
        for line in said(str(draft), chains, falls_with_position(str(draft))):
            console.print(f"· {line}")


def _measured(rows: Sequence[Row]) -> list[AtContext]:
    """Rows as the forecast takes them: of equal context and gamma the one of the most prompts.

    Without those that have no single gamma or no full pass.
    """
    found: dict[Any, AtContext] = {}
    for row in sorted(rows, key=lambda row: row.get("prompts", 0)):
        if None in (row["gamma"], row["c"], row["verify_cost"]):
            continue
        step_s: Any = row["target_step_s"]
        emitted = row.get("tokens_per_pass") or theory.expected_tokens(row["alpha"], row["gamma"])
        found[row["context"], row["gamma"]] = AtContext(
            row["tokens"], row["gamma"], step_s, row["c"] * step_s, row["verify_cost"] * step_s,
            row["overhead"] * step_s, emitted, row.get("speedup") or row.get("measured"),
        )  # fmt: skip
    return list(found.values())


def beyond_run(catalog: Catalog, run: str) -> tuple[AtContext, bool] | None:
    """The forecast at twice the longest context of a run's setting, at its gamma, and whether contended runs are in it.

    None for a run without a context, and if no other run differs only in the context.
    """
    head = catalog.head(run)
    if not head.summary.get("context") or head.summary.get("tree") is not None or head.summary["gamma"] is None:
        return None
    rows = [row for row in rows_by_context(catalog, run) if row["gamma"] == head.summary["gamma"]]
    further = beyond(_measured(rows))
    return None if further is None else (further, any(row["disturbed"] for row in rows))
