"""A run's summary in words: its headline, and its largest loss. Its numbers are `analysis.columns`."""

from typing import cast

from rich.markup import escape

from specbench.analysis.explain import is_explained, waterfall
from specbench.formatting import draft_name, more_memory, number
from specbench.nouns import with_noun
from specbench.records.catalog import digest
from specbench.records.looping import why_loops
from specbench.records.marks import why_unproved
from specbench.records.numbers import Summary
from specbench.records.run_record import RunRecord
from specbench.report.explanation import largest


def largest_loss(record: RunRecord) -> str | None:
    """The loss with the largest effect on a run's speedup, one fact per line; None if there is none or it is not known.

    It is not known of a contended run.
    """
    known = is_explained(record) if "shown" in record else record.get("explanation") is not None
    if not known or record["summary"].get("disturbed"):
        return None
    said = largest(waterfall(record, intervals=False))
    return said and f"largest loss: {said}\nall losses: specbench explain {digest(record['run_id'])}"


def brief(s: Summary) -> str:
    """α and the measured speedup."""
    why = None if s["speedup_measured"] is None else why_unproved(dict(s))
    marks = [why and why.partition(":")[0], why_loops(dict(s))]
    mark = "".join(f" ({one})" for one in marks if one)
    cost = f" for {more_memory(s['memory_ratio'])} memory" if "memory_ratio" in s and not mark else ""
    return f"α {number(s['alpha'], 3)}, speedup {number(s['speedup_measured'])}{cost}{mark}"


def headline(s: Summary, threads: int) -> str:
    """Target, draft, task, settings and size of the run, as markup of rich; `threads` is of torch on a CPU."""
    s = cast(Summary, {name: escape(value) if isinstance(value, str) else value for name, value in s.items()})
    return (
        f"[bold]{s['target']}[/bold] with draft [bold]{draft_name(s['draft'])}[/bold] on {s['task']}: "
        f"{'[bold]SIMULATED[/bold], ' if s.get('simulated') else ''}"
        f"T={s['temperature']:g}, {_processing(s)}{_gamma(s)}, {_rule(s)}{_batch(s)}"
        f"{with_noun(s['prompts'], 'prompt')}, "
        f"{s['tokens']} tokens, {s['dtype']} on {s['device']}"
        + (f" ({with_noun(threads, 'thread')})" if s["device"] == "cpu" else "")
        + _ran(s)
    )


def _ran(s: Summary) -> str:
    """The engine and the batch."""
    said = f", engine {s['engine']}" if s.get("engine") else ""
    return said + (f", batch {s.get('batch', 1)}" if s.get("batch", 1) == 1 else "")  # a larger batch is named before


def _gamma(s: Summary) -> str:
    if s.get("tree"):
        return f"tree {s['tree']} ({s['nodes_per_pass']:.1f} nodes, {s['depth_per_pass']:.1f} levels a pass)"
    if s["gamma"] is None:
        return f"γ={s.get('gamma_requested')} ({s['drafted_per_pass']:.1f} a pass)"
    return f"γ={s['gamma']}" + (" (auto)" if s.get("gamma_requested") == "auto" else "")


def _rule(s: Summary) -> str:
    if s.get("accept", "exact") == "exact":
        return ""
    return f"[bold]{s['accept']}{' (lossy)' if s['lossy'] else ''}[/bold], "


def _processing(s: Summary) -> str:
    return f"[bold]{s['processing']}[/bold], " if s.get("processing") else ""


def _batch(s: Summary) -> str:
    return "" if s.get("batch", 1) == 1 else f"[bold]batch {s['batch']}[/bold] ({s['occupancy']:.1f} prompts a pass), "
