"""The summary of a sweep's job and, if a row fell, the text of an issue. Standard library only.

`sweep_report.py OUT …` reads what `specbench compare --baseline FILE --format json` left, OUT/moved.json and
OUT/remarks.txt, and the history, a line a measurement. It prints Markdown: what moved, and the history as Mermaid
charts, since a summary embeds no SVG (that is in the artifact). It writes OUT/issue.md, its first line the title, if a
quantity moved for the worse or completions are not the target's own.
"""

import argparse
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMES = {"alpha": "α", "tokens_per_pass": "tokens per pass"}  # the others as they are
CHARTS = ("speedup", "tokens_per_pass", "alpha")
MOST_COMMITS = 30  # of a chart, the newest
Row = dict[str, Any]


def table(moved: Sequence[Row]) -> str:
    """What moved, what fails first, with the certainty and the commit of the baseline's measurement."""
    lines = ["| record | | baseline | now | change, 95% | q | since | |", "| --- " * 8 + "|"]
    for row in sorted(moved, key=lambda row: (not row["fails"], row["q"])):
        change, low, high = (percent(row[key]) for key in ("ratio", "low", "high"))
        quantity, verdict = NAMES.get(row["quantity"], row["quantity"]), "fails" if row["fails"] else "better"
        numbers = f"{row['baseline']:.4g} | {row['now']:.4g} | {change}% [{low}, {high}] | {row['q']:.1g}"
        lines.append(f"| {row['run_id']} | {quantity} | {numbers} | {commit(row['since'])[:7]} | {verdict} |")
    return "\n".join(lines)


def percent(ratio: float | None) -> str:
    """A change in percent; JSON has null for a ratio to 0."""
    return "+∞" if ratio is None else f"{100 * (ratio - 1):+.1f}"


def commit(name: str | None) -> str:
    """A commit, without the mark of changes."""
    return (name or "COMMIT").partition("+")[0]


def charts(history: Sequence[Row]) -> str:
    """A line over commits for each quantity: the geometric mean over configs, relative to their first measurement."""
    drawn = []
    for quantity in CHARTS:
        first: dict[str, float] = {}
        logs: dict[str, list[float]] = {}
        for row in history:
            if quantity in row["quantities"] and (value := row["quantities"][quantity][0]) > 0:
                start = first.setdefault(row["id"], value)
                logs.setdefault(commit(row["commit"])[:7], []).append(math.log(value / start))
        commits = list(logs)[-MOST_COMMITS:]
        means = [100 * (math.exp(sum(logs[one]) / len(logs[one])) - 1) for one in commits]
        if commits:
            title = f"{NAMES.get(quantity, quantity)}, % of the first measurement, mean of {len(first)} configs"
            drawn.append(
                f'```mermaid\nxychart-beta\n  title "{title}"\n  x-axis [{", ".join(map(json.dumps, commits))}]\n'
                f"  y-axis {min(*means, -1):.1f} --> {max(*means, 1):.1f}\n"
                f"  line [{', '.join(f'{one:.2f}' for one in means)}]\n```"
            )
    return "\n\n".join(drawn)


def issue(fallen: Sequence[Row], wrong: Sequence[str], bad: str, good: str, given: argparse.Namespace) -> str:
    """Title and text of an issue about rows that fell, with the command that finds the commit."""
    words, baseline, options = given.words, given.baseline, given.options
    kept = "--counted " * ("--counted" in options)
    parts = [f"Sweep {given.name}: a row fell"]
    if fallen:
        parts.append(table(fallen))
    if wrong:
        parts.append("Completions are not the target's own: " + ", ".join(wrong))
    check = (
        f"r=$PWD-results/$(git rev-parse HEAD); make .venv/.ready && .venv/bin/specbench sweep {words} results=$r || "
        f"exit 125; .venv/bin/specbench compare --baseline $PWD.jsonl --results $r {options}; code=$?; "
        "[ $code -le 1 ] || code=125; exit $code"
    )
    parts += [
        f"Measured at {bad} ({given.url}), whose artifact has the records. On the same kind of machine, this finds the "
        "commit:",
        f"```\ngit worktree add ../bisect {bad} && cp {baseline} ../bisect.jsonl && cd ../bisect\n"
        f"git bisect start {bad} {good}\ngit bisect run bash -c '{check}'\n```",
        f"If the change is meant, `specbench compare --baseline {baseline} --results FOLDER {kept}--write` makes it "
        "the baseline; FOLDER is the artifact.",
    ]
    return "\n\n".join(parts) + "\n"


def lines_of(*files: Path) -> list[Row]:
    """The lines of JSON files, oldest measurement first."""
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return sorted(rows, key=lambda row: str(row["created"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    for option in ("history", "name", "words", "baseline", "options", "commit"):
        parser.add_argument(f"--{option}", required=True)
    given = parser.parse_args()
    server, repository, run = (os.environ.get(f"GITHUB_{key}", "") for key in ("SERVER_URL", "REPOSITORY", "RUN_ID"))
    given.url = f"{server}/{repository}/actions/runs/{run}"
    said = (given.out / "moved.json").read_text(encoding="utf-8").strip()
    found: Row = json.loads(said) if said else {"moved": [], "wrong": [], "compared": 0}
    print(f"### What moved: {found['compared']} records compared\n")
    print(table(found["moved"]) if found["moved"] else "Nothing moved." if said else "There is no comparison.")
    remarks = (given.out / "remarks.txt").read_text(encoding="utf-8").splitlines()
    if remarks := [line for line in remarks if not line.startswith("records: ")]:  # which count what is read
        print("\n```\n" + "\n".join(remarks) + "\n```")
    print("\n" + charts(lines_of(*sorted(Path(given.history).glob("*.jsonl")))))
    fallen = [row for row in found["moved"] if row["fails"]]
    if fallen or found["wrong"]:
        lines = [] if fallen else [row for row in lines_of(Path(given.baseline)) if row["run_id"] in found["wrong"]]
        good = min(fallen, key=lambda row: row["q"])["since"] if fallen else lines[0]["commit"] if lines else None
        text = issue(fallen, found["wrong"], given.commit, commit(good), given)
        (given.out / "issue.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
