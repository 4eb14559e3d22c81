"""The record of `specbench recommend --validate` as tables in Markdown, as docs/choosing.md quotes them."""

from specbench.markdown import markdown_table
from specbench.records.documents import ErrorRow, PolicyRow, ValidateDocument
from specbench.stats import IntervalRecord


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
    parts = [_errors(record), _policies(record), _learning(record)]
    return "\n\n".join(["# Estimated against measured", *said, *parts]) + "\n"


def _errors(record: ValidateDocument) -> str:
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


def _policies(record: ValidateDocument) -> str:
    cells = []
    for row in record["policies"]:
        best = row["gamma"] == row["best"]
        against = "the best" if best else percent(_less_one(row["against_best"]))
        cells.append((row["candidate"], row["gamma"], _speed(row), against if row["lossless"] else "none"))
    table = markdown_table(("draft", "γ", "measured", "against the best fixed γ"), cells)
    return "\n\n".join(["## γ by a policy", table])


def _learning(record: ValidateDocument) -> str:
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
