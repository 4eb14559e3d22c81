"""Rows of docs/serving.md from records of `specbench server`, one per record: results/engines.csv.

    python experiments/engines_table.py FOLDER FILE.csv [DRAFT=MS ...]

FOLDER has the records. DRAFT=MS: the time per token of a draft served by itself in the same engine, as
`llama.cpp:smollm2-8bit=9.1`; drafts without one cost nothing (lookup), or have no prediction.

predicted: tokens per pass over the cost of a pass, 1 + c d in steps of the target, where d is the number of draft
tokens per pass and c a token of the draft over one of the target. Verifying d + 1 tokens counts as one step (the
paper's v = 1).
Tokens per pass are the engine's own counts; without these, tokens per piece of its streams (OpenVINO sends what a pass
decided as one piece).
"""

import csv
import sys
from pathlib import Path
from typing import Any

from specbench.records import store
from specbench.records.catalog import Catalog
from specbench.records.served import Answer

COLUMNS = (
    "engine", "draft", "temperature", "gamma", "target alone (ms)", "c", "predicted", "speedup", "speedup_low",
    "speedup_high", "tokens_per_pass", "drafted", "accepted", "verdict", "z", "tokens", "prompts",
)  # fmt: skip


def tokens_per_piece(answers: list[Answer]) -> float | None:
    """Tokens per piece after the first of each stream; None without streams."""
    pieces = sum(len(one.arrivals) - 1 for one in answers if one.arrivals)
    tokens = sum(one.tokens - one.first_tokens for one in answers if one.arrivals)
    return tokens / pieces if pieces else None


def row(s: dict[str, Any], alone_ms: dict[str, float]) -> dict[str, object]:
    """A row of the table."""
    step_ms = 1e3 * s["tpot_s_baseline"]
    name = f"{s['engine'].partition(' ')[0]}:{s['draft']}"
    c = 0.0 if s["draft"] == "lookup" else alone_ms[name] / step_ms if name in alone_ms else None
    predicted = None
    counted = c == 0 or (s["drafted"] is not None and s["passes"])
    if c is not None and counted and s["tokens_per_pass"] and s["lossless"]:
        predicted = s["tokens_per_pass"] / (1 + (c * s["drafted"] / s["passes"] if c else 0))
    verdict = s["verdict"] if s["verified"] or not s["lossless"] else f"not verified ({s['verdict']})"
    numbers = {
        "target alone (ms)": step_ms, "c": c, "predicted": predicted, "speedup": s["speedup_measured"],
        "speedup_low": s["speedup_low"], "speedup_high": s["speedup_high"], "tokens_per_pass": s["tokens_per_pass"],
        "z": s.get("proof_z"),
    }  # fmt: skip
    whole = {key: s[key] for key in ("engine", "draft", "gamma", "drafted", "accepted", "tokens", "prompts")}
    rounded = {key: None if value is None else round(value, 4) for key, value in numbers.items()}
    return {**whole, "temperature": f"{s['temperature']:g}", "verdict": verdict, **rounded}


def main(folder: str, file: Path, drafts: list[str]) -> None:
    """Write the table."""
    alone_ms = {name: float(ms) for name, _, ms in (one.rpartition("=") for one in drafts)}
    rows = []
    for head in Catalog(folder, kept=False).heads:
        if not head.summary.get("served"):
            continue
        summary = dict(head.summary)
        if summary["tokens_per_pass"] is None:
            answers = [prompt["served"]["drafted"] for prompt in store.read(head.file)["prompts"]]
            summary["tokens_per_pass"] = tokens_per_piece(answers)
        rows.append(row(summary, alone_ms))
    rows.sort(key=lambda one: (str(one["engine"]).lower(), one["draft"] != "lookup", one["draft"], one["temperature"]))
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: one[key] for key in COLUMNS} for one in rows)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
