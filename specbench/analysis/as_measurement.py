"""A record as a measurement: its quantities, each with the contribution of every prompt."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.contradictions import contradictions
from specbench.analysis.costs.mean_costs import POWERS_OF_C, POWERS_OF_V, columns_of_c, columns_of_part, mean_step_s
from specbench.analysis.paired import REACH
from specbench.analysis.summary import times_of
from specbench.files import json_digest
from specbench.records.measurements import PER_UNIT, Estimate, Measurement, Quantity, identity
from specbench.records.run_record import PromptRecord, Row, RunRecord, emitted_and_passes
from specbench.records.served import is_served

COUNTED: tuple[Quantity, ...] = ("alpha", "tokens_per_pass")  # of tokens and seeds, not of times
Floats = NDArray[np.float64]


def measurement(record: RunRecord) -> Measurement:
    """The line of a record. A disturbed record's has no times; its quantities are computed from its prompts."""
    summary, prompts = record["summary"], record["prompts"]
    digest, config = identity(record["config"], dict(summary))
    signs = (summary.get("disturbed_by") or "without a sign") if summary.get("disturbed") else None
    quantities: dict[Quantity, Estimate] = {}
    by_prompt: dict[Quantity, list[int]] = {}
    for name, found in _quantities(record, timed=signs is None).items():
        value, shares = found
        quantities[name] = _estimate(value, shares)
        by_prompt[name] = [round(PER_UNIT * share) for share in shares]
    more: Row = dict(summary)  # it may have columns that older records lack
    if (memory := more.get("memory_bytes")) is not None:
        quantities["memory"] = (float(memory), None, None)
    row: Measurement = {
        "id": digest,
        "config": config,
        "run_id": record["run_id"],
        "commit": _commit(record),
        "created": summary["created"],
        "hardware": summary.get("hardware"),
        "device": summary["device"],
        "dtype": summary.get("dtype"),
        "simulated": bool(summary.get("simulated")),
        "lossless": bool(summary["lossless"] or summary.get("lossy")),
        "disturbed_by": signs,
        "prompts": json_digest([[one["index"], one["prompt"]] for one in prompts]),
        "quantities": quantities,
        "by_prompt": by_prompt,
    }
    if "v" in quantities:
        row["step_s"] = _short(mean_step_s(prompts))
    if processes := more.get("speedup_by_process"):
        row["runs"] = len(processes)
        row["between"] = more["speedup_between"]
    if lines := contradictions(record):
        row["contradicts"] = "; ".join(lines[:2]) + (f"; and {len(lines) - 2} more" if len(lines) > 2 else "")
    return row


def without_times(row: Measurement) -> Measurement:
    """A measurement with only α and tokens per pass, so that it does not matter whether it was disturbed."""
    counted = {name: row["quantities"][name] for name in COUNTED if name in row["quantities"]}
    shares = {name: row["by_prompt"][name] for name in COUNTED if name in row["by_prompt"]}
    row = {**row, "quantities": counted, "by_prompt": shares, "disturbed_by": None}
    row.pop("step_s", None)
    return row


def _commit(record: RunRecord) -> str | None:
    """The commit, in 12 digits, with '+changes' if the tree differed from it."""
    digits, plus, changes = (record["environment"]["commit"] or "").partition("+")
    return digits[:12] + plus + changes or None


def _quantities(record: RunRecord, timed: bool) -> dict[Quantity, tuple[float, Floats]]:
    """Value and contributions of each prompt of the quantities that a record has."""
    prompts, summary = record["prompts"], record["summary"]
    found: dict[Quantity, tuple[float, Floats]] = {
        "alpha": _ratio([[sum(p["beta"]), len(p["beta"])] for p in prompts], [1, -1]),
        "tokens_per_pass": _ratio([_emitted(p) for p in prompts], [1, -1]),
    }
    if timed and summary["speedup_measured"] is not None:
        found["speedup"] = _ratio([times_of(p, ("decode_s",)) for p in prompts], [1, -1, -1, 1])
    if is_served(record):  # what a pass is made of is not seen, and some servers count nothing
        return {name: one for name, one in found.items() if one[0] > 0}
    if not timed:
        return found
    if summary["c"]:
        found["c"] = _ratio([columns_of_c(p) for p in prompts], POWERS_OF_C)
    found["v"] = _ratio([columns_of_part(p, "verify_s") for p in prompts], POWERS_OF_V)
    return {name: one for name, one in found.items() if one[0] > 0 or name == "alpha"}


def _emitted(prompt: PromptRecord) -> list[int]:
    return list(emitted_and_passes(prompt))


def _ratio(columns: Sequence[Sequence[float]], powers: Sequence[int]) -> tuple[float, Floats]:
    """The product of column totals to these powers, and each prompt's contribution: its share less the mean's."""
    columns_NK, powers_K = np.asarray(columns, float), np.asarray(powers, float)
    totals = columns_NK.sum(0)
    if (totals <= 0).any():
        return 0.0, np.zeros(len(columns_NK))
    return float(np.prod(totals**powers_K)), len(columns_NK) * (columns_NK / totals * powers_K).sum(-1)


def _estimate(value: float, shares: Floats) -> Estimate:
    """A value to six digits, and its interval over prompts."""
    if len(shares) < 2 or value <= 0:
        return (_short(value), None, None)
    reach = REACH * math.sqrt(log_variance(shares))
    return (_short(value), _short(value * math.exp(-reach)), _short(value * math.exp(reach)))


def log_variance(shares: Floats) -> float:
    """The variance of the log of a value whose prompts contribute `shares`."""
    return float((shares**2).sum() / (len(shares) * (len(shares) - 1)))


def _short(value: float) -> float:
    return float(f"{value:.6g}")
