"""The table of `specbench recommend`: the ranking, the reasons, and what real runs measured."""

from typing import Any

from specbench.markdown import markdown_table
from specbench.records.documents import ErrorRow, PolicyRow, RankedRow, RecommendDocument, ValidateDocument, Verified
from specbench.stats import IntervalRecord

MOST_ROWS = 16


def draw(record: RecommendDocument) -> None:
    """The ranking, the reasons, and the proof."""
    from rich.markup import escape
    from rich.table import Table

    from specbench.analysis.forecast.theorems import BY_POSITION, BY_RANK
    from specbench.report.console import terminal

    console = terminal()
    console.width = max(console.width, 130)
    console.print(
        f"[bold]{escape(record['target'])}[/bold] on {escape(record['task'])}, T={record['temperature']:g}, "
        f"{record['dtype']}, engine {record['engine']}; a target step takes {1000 * record['target_step_s']:.2f} ms",
        markup=True,
    )
    if (signs := record.get("disturbed_by")) is not None:
        console.print(
            f"DISTURBED: {signs}, so c, v and the ranking are unreliable (α is not); repeat it when nothing else runs"
        )
    table = Table(box=None, pad_edge=False, header_style="bold")
    batches = {row.get("batch", 1) for row in record["rows"]}
    shown = [
        row
        for batch in sorted(batches)
        for row in _of_batch(record["rows"], batch)[: MOST_ROWS // min(4, len(batches))]
    ]
    for title in (
        "",
        *(["batch"] if len(batches) > 1 else []),
        "draft",
        "γ",
        "α",
        "c",
        "v",
        "overhead",
        "tok/pass",
        "Eq. 1",
        "predicted",
        "estimated",
        "95%",
    ):
        table.add_column(title, justify="left" if title in ("", "draft") else "right")
    for row in shown:
        leads = row is _of_batch(record["rows"], row.get("batch", 1))[0]
        cost, estimated = row["cost"], row["estimated"]
        low, high = estimated["low"], estimated["high"]
        mark = {BY_POSITION: "*", BY_RANK: "†"}.get(row["prediction"], "")
        table.add_row(
            "→" if leads else "", *([str(row.get("batch", 1))] if len(batches) > 1 else []), row["candidate"],
            _drafted(row["gamma"], row.get("tree")),
            f"{row['alpha']['value']:.3f}",
            f"{cost['c']:.3f}", f"{cost['verify_cost']:.2f}", f"{cost['overhead']:.3f}",
            f"{row['tokens_per_pass']:.2f}", f"{row['tokens_per_pass_iid']:.2f}{mark}", f"{row['predicted']:.2f}{mark}",
            f"{estimated['value']:.2f}", "–" if low is None else f"{low:.2f}–{high:.2f}",
            style="bold" if leads else None,
        )  # fmt: skip
    console.print(table)
    if any(row["prediction"] == BY_POSITION for row in record["rows"][:MOST_ROWS]):
        console.print("* from the acceptance rate at each position, since it falls with the position")
    if any(row.get("tree") for row in record["rows"][:MOST_ROWS]):
        console.print(
            "† tree: γ is the number of levels (L), c the cost of a level, tokens are from the acceptance by rank "
            "(Sequoia, Prop. 3.4)"
        )
    for line in record["reasons"]:
        console.print(f"· {line}")
    if record["verified"]:
        console.print(_proof(record["verified"]))
    for one in record["verified"]:
        if one.get("disturbed_by"):
            console.print(f"{one['run_id']}: DISTURBED, so its speedup is unreliable: {one['disturbed_by']}")
        if one.get("unproved"):
            console.print(f"{one['run_id']}: its speedup is {one['unproved']}", markup=False)


def _of_batch(rows: list[RankedRow], batch: int) -> list[RankedRow]:
    return [row for row in rows if row.get("batch", 1) == batch]


def _drafted(gamma: int, tree: str | None) -> str:
    return f"{gamma} L" if tree else str(gamma)


def _off(one: Verified) -> str:
    if one.get("disturbed_by"):
        return "disturbed"
    return "–" if one["off"] is None else f"{100 * one['off']:+.1f}%"


def _evidence(one: Verified) -> str:
    """The run; for another engine, the share of completions equal to those without a draft."""
    if one["run_id"] is None:
        return f"{100 * one.get('alike', 0):.0f}% of completions as without a draft"
    return one["run_id"] + (" (existing record)" if one["reused"] else "")


def _proof(verified: list[Verified]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", title="measured by real runs", title_justify="left")
    for title in ("draft", "γ", "batch", "estimated", "measured", "95%", "error", "run"):
        table.add_column(title, justify="left" if title in ("draft", "run") else "right")
    for one in verified:
        measured = one["measured"]
        table.add_row(
            one["candidate"], _drafted(one["gamma"], one.get("tree")), str(one.get("batch", 1)),
            f"{one['estimated']['value']:.2f}", "–" if measured is None else f"{measured:.2f}",
            "–" if one["measured_low"] is None else f"{one['measured_low']:.2f}–{one['measured_high']:.2f}",
            _off(one),
            _evidence(one),
        )  # fmt: skip
    return table


# The record of `specbench recommend --validate` as tables in Markdown, as docs/choosing.md quotes them.


def markdown(record: ValidateDocument) -> str:
    """The whole document: prediction errors, policies, and the cost of estimating alpha."""
    same = record["same_texts"]
    said = [
        f"{record['target']} on {record['task']}, T={record['temperature']:g}, {record['dtype']}, engine "
        f"{record['engine']}, {record['hardware']}. {record['prompts']} prompts, {record['tokens']} tokens, "
        f"each decoded {record['repeats']} times by each candidate, in turn, with {len(record['rounds'])} rounds of "
        "timed passes. 95% intervals resample prompts, and those of the estimate and of its error the rounds, too.",
    ]
    if (signs := record.get("disturbed_by")) is not None:
        said.append(f"**DISTURBED**: {signs}. Estimates, speedups and errors are unreliable; measure again.")
    if same is not None:
        said.append(f"{100 * same:.1f}% of the completions of lossless candidates equal the target's, token for token.")
    parts = [_error_section(record), _policy_section(record), _learning_section(record)]
    return "\n\n".join(["# Estimated against measured", *said, *parts]) + "\n"


def _error_section(record: ValidateDocument) -> str:
    if not record["rows"]:
        return "## Prediction errors\n\nCompletions are too short for a full pass at any γ, so nothing is predicted."
    table = markdown_table(
        ("draft", "γ", "tokens per pass", "Theorem 3.8", "estimated", "measured", "error"),
        [
            (
                row["candidate"], row["gamma"], f"{row['tokens_per_pass']:.2f}", f"{row['predicted']:.2f}",
                span(row["estimated"]), _speed(row), percent(row["error"]) if row["lossless"] else "none",
            )
            for row in record["rows"]
        ],
    )  # fmt: skip
    known = [abs(row["error"]["value"]) for row in record["rows"] if row["lossless"]]
    largest = f"The largest error is {100 * max(known):.1f}%." if known else "No candidate was lossless."
    return "\n\n".join(["## Prediction errors", table, largest])


def _policy_section(record: ValidateDocument) -> str:
    cells = []
    for row in record["policies"]:
        best = row["gamma"] == row["best"]
        against = "the best" if best else percent(_less_one(row["against_best"]))
        cells.append((row["candidate"], row["gamma"], _speed(row), against if row["lossless"] else "none"))
    table = markdown_table(("draft", "γ", "measured", "against the best fixed γ"), cells)
    return "\n\n".join(["## γ by a policy", table])


def _learning_section(record: ValidateDocument) -> str:
    learning = record["learning"]
    table = markdown_table(
        ("draft", "α by teacher forcing", "γ", "α by decoding"),
        [
            (row["candidate"], span(row["alpha"], 3), row["gamma"], span(row["alpha_decoded"], 3))
            for row in record["rows"]
            if row["alpha_decoded"] is not None
        ],
    )
    times = learning["decode_s"] / learning["score_s"]
    said = (
        f"Scoring {learning['drafts']} drafts on the cached sample took {learning['score_s']:.2f} s; decoding the same "
        f"prompts once with each draft and γ took {learning['decode_s']:.1f} s, {times:.0f} times as long."
    )
    return "\n\n".join(["## What α costs to learn", said, table])


def _speed(row: ErrorRow | PolicyRow) -> str:
    """The measured speedup; 'not lossless' if rounding does not explain how the completions differ."""
    return span(row["measured"]) if row["lossless"] else "not lossless"


def _less_one(ratio: IntervalRecord) -> IntervalRecord:
    low, high = (None if bound is None else bound - 1 for bound in (ratio["low"], ratio["high"]))
    return {"value": ratio["value"] - 1, "low": low, "high": high}


def span(value: IntervalRecord, digits: int = 2) -> str:
    """A number with its interval."""
    if value["low"] is None or value["high"] is None:
        return f"{value['value']:.{digits}f}"
    return f"{value['value']:.{digits}f} [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"


def percent(value: IntervalRecord) -> str:
    """A share with its interval, in percent and with signs."""
    if value["low"] is None or value["high"] is None:
        return f"{100 * value['value']:+.1f}%"
    return f"{100 * value['value']:+.1f}% [{100 * value['low']:+.1f}, {100 * value['high']:+.1f}]"
