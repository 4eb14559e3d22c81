"""The columns of a run in each place, in their order: the screen, the list of runs, the tables.

All show columns of one set (`analysis.columns`). A variant of a column (`_as`) differs in its title or in how it is
written. A column whose `shown` names a view stands at its end.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from specbench.analysis.columns import COLUMNS, MORE
from specbench.config.draft_labels import alpha_is_of
from specbench.config.schema import METRICS
from specbench.formatting import NONE, Column, interval, interval_of, number, says_nothing, share
from specbench.records.marks import why_unproved
from specbench.records.numbers import Summary
from specbench.records.run_record import Row
from specbench.records.served import SERVED

EVERY = COLUMNS | MORE
DIFFERENCE = ("quality_difference", "quality_difference_low", "quality_difference_high")


def _is_missing(value: object) -> bool:
    """Whether a cell of a table has no value: None, or NaN, which equals nothing."""
    return value is None or value != value


def view(name: str, *shown: str | Column) -> tuple[Column, ...]:
    """The columns `shown`, some given by name, then all that name this view."""
    more = [one for one in EVERY.values() if name in one.shown]
    return (*(EVERY[one] if isinstance(one, str) else one for one in shown), *more)


def _as(name: str, **changes: Any) -> Column:
    return replace(EVERY[name], **changes)


def _alpha(s: Summary) -> str:
    return number(s["alpha"], 3) if s.get("simulated") else interval_of(s, "alpha", digits=3)


def _alpha_note(s: Summary) -> str:
    if s.get("simulated"):
        return "as given by simulate.alpha, not measured"
    part = alpha_is_of(s["draft"])
    return "acceptance probability, Cor 3.6" + (f", of the {part}" if part else "")


# The measurements of a run, first the result, then the numbers that it comes from (`results RUN`, and after a run).
SCREEN = view(
    "screen",
    "speedup_measured", "speedup_end_to_end", "identical",
    _as("numerics", title="  logits", format=lambda s: "equal",
        when=lambda s: s["identical"] is not None and s.get("numerics") == "invariant",
        note="bitwise, however many tokens are read at once; checked at start"),
    "proof_z", "proof_power", _as("alpha", format=_alpha, note=_alpha_note), "alpha_rule", "total_variation",
    "alpha_first", "learning_s", "accepted_per_drafted", "tokens_per_pass", "acceptance_by_rank",
    "acceptance_by_rank_estimated", "c", "c_step", "verify_cost", "speedup_predicted", "speedup_calibrated",
    "end_to_end_predicted", "ttft_s_baseline", "prompt_tokens_per_s", "tpot_s_baseline", "tokens_per_second",
    "latency_s_baseline", "memory_ratio", "memory_peak_bytes", "joules_per_token", "operations",
    _as("quality_speculative", title=lambda s: METRICS[s["quality_metric"]]),
)  # fmt: skip


def rows(s: Summary) -> list[tuple[str, str, str]]:
    """The table of a run: name, value, and what the value is."""
    return [(one.title_of(s), one.text(s), one.note_of(s)) for one in SCREEN if one.when(s)]


def cost_of_verifying(s: Summary) -> str:
    """v with its interval; the same text in the table and in remarks."""
    return COLUMNS["verify_cost"].text(s)


def _in_list(name: str, title: str, spec: str = ".2f") -> Column:
    return _as(name, title=title, format=spec, ends=None, unit="")


def _gamma(row: Row) -> str:
    """Gamma; its policy if it changed, or the depth of a tree."""
    return str(row.get("gamma_requested") or NONE) if row.get("gamma") is None else str(row["gamma"])


def _tested(row: Row) -> str:
    z = row.get("proof_z")
    if (why := why_unproved(row)) is not None:
        return "untested" if z is None else f"{z:.2f} ({why.partition(':')[0]})"
    return number(z)


def _speed(row: Row) -> str:
    said = number(row.get("speedup_measured"))
    unverified = " not verified" if row.get(SERVED) and not row.get("verified") and said != NONE else ""
    if said == NONE or row.get("speedup_low") is None:
        return said + unverified
    if says_nothing(row, row["speedup_low"], row["speedup_high"]):
        return f"{said} (too few prompts){unverified}"
    return f"{said} ({row['speedup_low']:.2f}–{row['speedup_high']:.2f}){unverified}"


def _rule(row: Row) -> str:
    return f"{row.get('accept')} (lossy)" if row.get("lossy") else str(row.get("accept") or "exact")


def _more_memory(row: Row) -> str:
    ratio = row.get("memory_ratio")
    return NONE if ratio is None else f"{100 * (ratio - 1):+.0f}%"


# `specbench results`: those that fit on a screen.
LISTED = view(
    "list",
    _as("run_id", title="id"),
    _as("target", title="target", format=lambda row: f"{row['target']}{'*' if row.get('simulated') else ''}"),
    _in_list("draft", "draft", ""), "task", "temperature", _as("gamma", format=_gamma), "prompts",
    _in_list("alpha", "α", ".3f"), _in_list("c", "c", ".3f"), _in_list("verify_cost", "v"),
    _in_list("tokens_per_pass", "tok/pass"), _in_list("speedup_predicted", "predicted"),
    _in_list("speedup_calibrated", "calibrated"), _as("speedup_measured", title="measured", format=_speed),
    _as("memory_ratio", format=_more_memory), _in_list("quality_speculative", "quality"),
    _in_list("identical", "identical", ".0%"), _as("proof_z", title="z", format=_tested),
    _as("accept", format=_rule), _as("batch", format=lambda row: str(row.get("batch") or 1)),
    _in_list("tokens_per_second", "tok/s", ".0f"), "prediction",
    _as("disturbed", format=lambda row: "contended" if row.get("disturbed") else ""),
)  # fmt: skip
LOOPS = view("loops", "looping", _in_list("speedup_without_loops", "without loops"))  # if completions of a run loop
SERVED_LISTED = view("served", Column("verdict", "verdict", format=""))  # if servers are among the runs
TELLING = view(  # if rows differ in them
    "telling", "device", "dtype", Column("engine", "engine", format=""), "numerics", "processing", "context"
)


def _number(name: str, title: str, spec: str = ".2f") -> Column:
    """A column of a table without its interval."""
    return _as(name, title=title, format=spec, ends=None, unit="")


def alpha(row: Row) -> str:
    """A row's alpha with its interval, and its owner if it belongs to a part of the draft."""
    of, said = alpha_is_of(str(row["draft"])), interval_of(row, "alpha")
    return f"{said} ({of})" if of and said != NONE else said


def _lossless(row: Row) -> str:
    if row["state"] == "lossy":
        return f"lossy, TV {number(row['total_variation'], 3)}"
    return "underpowered" if row["unproved"] is True else "yes" if row["state"] == "lossless" else "no"


def _quality(row: Row) -> str:
    """'BLEU 28.5 (-1.5 [-3.0, +0.1])'; without a difference for two samples of one distribution."""
    metric, ours = row["quality_metric"], row["quality_speculative"]
    if _is_missing(metric):
        return NONE
    score = f"{METRICS[metric]} {number(ours, 1)}"
    equal = row["state"] == "lossless" and (row["temperature"] > 0 or row["identical"] == 1)
    less, low, high = (row[key] for key in DIFFERENCE)
    return score if equal or _is_missing(low) else f"{score} ({interval(less, low, high, 1, '+')})"


WRONG = "not lossless"
V = _number("verify_cost", "v")
TOKENS = _number("tokens_per_pass", "tokens/pass")
PASSES = Column("passes_run", "passes", format="")
MEASURED = _as("speedup_measured", title="measured")
IDENTICAL = _as("identical", format=lambda row: share(row["identical"]))

RUNS = view(
    "runs", _as("alpha", format=".2f"), _number("c", "c"), V, TOKENS, _number("speedup_predicted", "predicted"), PASSES,
    MEASURED, _number("speedup_end_to_end", "end to end"), IDENTICAL,
)  # fmt: skip
BEYOND = view(
    "beyond", _as("alpha", format=alpha), _as("alpha_rule", title="under the rule", format=".2f"),
    _number("c", "c", ".3f"), V, TOKENS, PASSES,
    _as("speedup_measured", title="measured",
        format=lambda row: WRONG if row["state"] == WRONG else MEASURED.text(row)),
    Column("lossless", "lossless", format=_lossless), Column("quality", "quality", format=_quality), IDENTICAL,
)  # fmt: skip
TREES = view(
    "trees", _as("tokens_per_pass", title="tokens/pass", ends="tokens"),
    _number("tokens_per_pass_predicted", "predicted"), _number("c", "c", ".3f"), V,
    _number("speedup_calibrated", "calibrated"), PASSES,
    _as("speedup_measured", title="measured",
        format=lambda row: (MEASURED.text(row) + " underpowered" * row["unproved"]) if row["lossless"] else WRONG),
)  # fmt: skip


def keys(view: Iterable[Column], *first: str) -> list[str]:
    """The keys of a table's values: `first`, then its other columns."""
    return list(dict.fromkeys([*first, *(one.name for one in view if one.shown)]))
