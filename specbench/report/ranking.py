"""The output of `specbench recommend`: the ranking with its reasons and real runs, and the document of `--validate`."""

from collections.abc import Callable, Sequence
from typing import Any

from specbench.analysis.distinct import said
from specbench.analysis.forecast.theorems import BY_POSITION, BY_RANK
from specbench.formatting import NONE, Column, cells, interval, markdown_table, number, percentage, span, titles
from specbench.nouns import with_noun
from specbench.records.alpha_document import AlphaRow
from specbench.records.choosing import ErrorRow, PolicyRow, RankedRow, RecommendDocument, ValidateDocument, Verified
from specbench.report.console import plain_table, wide_console

MOST_ROWS = 16


def draw(record: RecommendDocument) -> None:
    """Print the ranking, the reasons, and what real runs measured."""
    from rich.markup import escape

    console = wide_console(130)
    console.print(
        f"[bold]{escape(record['target'])}[/bold] on {escape(record['task'])}, T={record['temperature']:g}, "
        f"{record['dtype']}, engine {record['engine']}; a target step takes {1000 * record['target_step_s']:.2f} ms",
        markup=True,
    )
    if (signs := record.get("disturbed_by")) is not None:
        console.print(
            f"CONTENDED: {signs}, so c, v and the ranking are unreliable (α is not); repeat it when nothing else runs"
        )
    console.print(_ranking(record["rows"]))
    listed = record["rows"][:MOST_ROWS]
    if any(row["prediction"] == BY_POSITION for row in listed):
        console.print("* from the acceptance at each position, since it falls with the position")
    if any(row.get("tree") for row in listed):
        console.print(
            "† tree: γ is the number of levels (L), c the cost of a level, tokens are from the acceptance by rank "
            "(Sequoia, Prop. 3.4)"
        )
    for line in record["reasons"]:
        console.print(f"· {line}")
    for line in _equal_prompts(record["alpha_rows"]):
        console.print(f"· {line}")
    if record["verified"]:
        console.print(_measured(record["verified"]))
    for run in record["verified"]:
        if run.get("disturbed_by"):
            console.print(f"{run['run_id']}: CONTENDED, so its speedup is unreliable: {run['disturbed_by']}")
        if run.get("unproved"):
            console.print(f"{run['run_id']}: its speedup is {run['unproved']}", markup=False)


def _equal_prompts(rows: Sequence[AlphaRow]) -> list[str]:
    """A remark for each sample in which some prompts are equal."""
    counts = dict.fromkeys((row["prompts"], row.get("distinct_prompts")) for row in rows)
    return [said(prompts, different) for prompts, different in counts if different is not None]


def _ranking(rows: list[RankedRow]) -> Any:
    """The best candidates at each batch size; the first of each leads."""
    by_batch: dict[int, list[RankedRow]] = {}
    for row in rows:
        by_batch.setdefault(row.get("batch", 1), []).append(row)
    told = [one for one in RANKED if any(map(one.when, rows)) and (one.name != "batch" or len(by_batch) > 1)]
    table = plain_table(["", *titles(told)], left=("", "draft"))
    for _, group in sorted(by_batch.items()):
        for row in group[: MOST_ROWS // min(4, len(by_batch))]:
            leads = row is group[0]
            table.add_row("→" if leads else "", *cells(told, row).values(), style="bold" if leads else None)
    return table


def _marked(name: str) -> Callable[[Any], str]:
    """A prediction, and what it is made from."""
    return lambda row: number(row[name]) + {BY_POSITION: "*", BY_RANK: "†"}.get(row["prediction"], "")


def _memory(row: RankedRow) -> str:
    """The share of memory that a candidate needs beyond the target's."""
    return percentage(row["memory_ratio"], None, None, 0, less=1) if "memory_ratio" in row else NONE


def _gamma(row: RankedRow | Verified) -> str:
    return f"{row['gamma']} L" if row.get("tree") else str(row["gamma"])


RANKED = (  # older documents say nothing of memory, nor of prompts
    Column("batch", "batch", "", value=lambda row: row.get("batch", 1)),
    Column("candidate", "draft", ""),
    Column("gamma", "γ", _gamma),
    Column("alpha", "α", ".3f", value=lambda row: row["alpha"].value),
    Column("c", "c", ".3f", value=lambda row: row["cost"].c),
    Column("verify_cost", "v", value=lambda row: row["cost"].verify_cost),
    Column("overhead", "overhead", ".3f", value=lambda row: row["cost"].overhead),
    Column("tokens_per_pass", "tok/pass"),
    Column("tokens_per_pass_iid", "Eq. 1", _marked("tokens_per_pass_iid")),
    Column("predicted", "predicted", _marked("predicted")),
    Column("estimated", "calibrated", value=lambda row: row["estimated"].value),
    Column("interval", "95%", lambda row: span(row["estimated"].low, row["estimated"].high, ".2f")),
    Column("memory_ratio", "memory", _memory, when=lambda row: "memory_ratio" in row),
    Column("end_to_end", "end to end", when=lambda row: "end_to_end" in row),
)


def _measured(runs: list[Verified]) -> Any:
    """The table of real runs beside their estimates."""
    table = plain_table(titles(VERIFIED), left=("draft", "run"), title="measured by real runs")
    for run in runs:
        table.add_row(*cells(VERIFIED, run).values())
    return table


def _error(run: Verified) -> str:
    """The prediction error."""
    if run.get("disturbed_by"):
        return "contended"
    return NONE if run["off"] is None else percentage(run["off"], None, None)


def _evidence(run: Verified) -> str:
    """The run; for another engine, the share of completions equal to those without a draft."""
    if run["run_id"] is None:
        return f"{100 * run.get('alike', 0):.0f}% of completions as without a draft"
    return run["run_id"] + (" (existing record)" if run["reused"] else "")


VERIFIED = (
    Column("candidate", "draft", ""),
    Column("gamma", "γ", _gamma),
    Column("batch", "batch", "", value=lambda run: run.get("batch", 1)),
    Column("estimated", "calibrated", value=lambda run: run["estimated"].value),
    Column("measured", "measured"),
    Column("interval", "95%", lambda run: span(run["measured_low"], run["measured_high"], ".2f")),
    Column("off", "error", _error),
    Column("run_id", "run", _evidence),
)


def markdown(record: ValidateDocument) -> str:
    """The record of `--validate` as Markdown: prediction errors, policies, and the cost of estimating alpha."""
    lines = [
        f"{record['target']} on {record['task']}, T={record['temperature']:g}, {record['dtype']}, engine "
        f"{record['engine']}, {record['hardware']}. {with_noun(record['prompts'], 'prompt')}, "
        f"{record['tokens']} tokens, "
        f"each decoded {record['repeats']} times by each candidate, in turn, with {len(record['rounds'])} rounds of "
        "timed passes. 95% intervals are over prompts, for calibrated speedups and errors also over the "
        "rounds.",
    ]
    if (signs := record.get("disturbed_by")) is not None:
        lines.append(f"**CONTENDED**: {signs}. Speedups and errors are unreliable; measure again.")
    if (same := record["same_texts"]) is not None:
        lines.append(
            f"{100 * same:.1f}% of the completions of lossless candidates equal the target's, token for token."
        )
    lines += _equal_prompts(record["alpha_rows"])
    parts = [_prediction_errors(record), _policies(record), _cost_of_alpha(record)]
    return "\n\n".join(["# Calibrated against measured", *lines, *parts]) + "\n"


def _prediction_errors(record: ValidateDocument) -> str:
    if not record["rows"]:
        return "## Prediction errors\n\nCompletions are too short for a full pass at any γ, so nothing is predicted."
    table = markdown_table(titles(ERRORS), [list(cells(ERRORS, row).values()) for row in record["rows"]])
    known = [abs(row["error"].value) for row in record["rows"] if row["lossless"]]
    largest = f"The largest error is {100 * max(known):.1f}%." if known else "No candidate was lossless."
    return "\n\n".join(["## Prediction errors", table, largest])


def _policies(record: ValidateDocument) -> str:
    table = markdown_table(titles(POLICIES), [list(cells(POLICIES, row).values()) for row in record["policies"]])
    return "\n\n".join(["## γ by a policy", table])


def _against_best(row: PolicyRow) -> str:
    against = "the best" if row["gamma"] == row["best"] else percentage(**vars(row["against_best"]), less=1)
    return against if row["lossless"] else "none"


def _cost_of_alpha(record: ValidateDocument) -> str:
    learning = record["learning"]
    decoded = [row for row in record["rows"] if row["alpha_decoded"] is not None]
    table = markdown_table(titles(ALPHAS), [list(cells(ALPHAS, row).values()) for row in decoded])
    times = learning["decode_s"] / learning["score_s"]
    said = (
        f"Scoring {learning['drafts']} drafts on the cached sample took {learning['score_s']:.2f} s; decoding the same "
        f"prompts once with each draft and γ took {learning['decode_s']:.1f} s, {times:.0f} times as long."
    )
    return "\n\n".join(["## What α costs to learn", said, table])


def _speed(row: ErrorRow | PolicyRow) -> str:
    """The measured speedup; 'not lossless' if rounding does not explain how the completions differ."""
    return interval(**vars(row["measured"])) if row["lossless"] else "not lossless"


def _interval(name: str, digits: int = 2) -> Callable[[Any], str]:
    return lambda row: interval(**vars(row[name]), digits=digits)


def _off(row: ErrorRow) -> str:
    return percentage(**vars(row["error"])) if row["lossless"] else "none"


DRAFT, GAMMA = Column("candidate", "draft", ""), Column("gamma", "γ", "")
ERRORS = (
    DRAFT, GAMMA, Column("tokens_per_pass", "tokens per pass"), Column("predicted", "Theorem 3.8"),
    Column("estimated", "calibrated", _interval("estimated")), Column("measured", "measured", _speed),
    Column("error", "error", _off),
)  # fmt: skip
POLICIES = (
    DRAFT, GAMMA, Column("measured", "measured", _speed),
    Column("against_best", "against the best fixed γ", _against_best),
)  # fmt: skip
ALPHAS = (
    DRAFT, Column("alpha", "α by teacher forcing", _interval("alpha", 3)), GAMMA,
    Column("alpha_decoded", "α by decoding", _interval("alpha_decoded", 3)),
)  # fmt: skip
