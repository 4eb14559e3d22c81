"""A run's summary in words: its headline, the rows of its table, and remarks where a reader could be misled."""

from typing import cast

from rich.markup import escape

from specbench.analysis.explain import waterfall
from specbench.analysis.forecast.theorems import BY_POSITION, BY_RANK, BY_ROW
from specbench.config.draft_labels import alpha_is_of
from specbench.config.schema import METRICS
from specbench.formatting import NONE, draft_name, interval, interval_of, more_memory, number, size
from specbench.nouns import with_noun
from specbench.records.catalog import digest
from specbench.records.looping import why_loops
from specbench.records.marks import why_unproved
from specbench.records.numbers import Summary
from specbench.records.schema import RunRecord
from specbench.report.explanation import largest
from specbench.theory import expected_tokens


def largest_loss(record: RunRecord) -> str | None:
    """The loss with the largest effect on a run's speedup, a fact a line; None if there is none or it is not known.

    It is not known of a contended run.
    """
    if record.get("explanation") is None or record["summary"].get("disturbed"):
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


def _throughput(s: Summary) -> list[tuple[str, str, str]]:
    """Throughput, and the latency of a batch."""
    if (alone := s.get("tokens_per_second_baseline")) is None:
        return []
    together = "" if s.get("batch", 1) == 1 else f", {s['batch']} prompts together"
    said = f"{alone:.0f} / {number(s.get('tokens_per_second'), 0)}"
    rows = [("tokens a second", said, f"target alone / speculative{together}")]
    if together:
        wait = s["latency_s"]
        said = f"{1000 * s['latency_s_baseline']:.2f} / {number(None if wait is None else 1000 * wait)} ms"
        rows.append(("  latency of a prompt", said, "per token, target alone / speculative"))
    return rows


def _predicted_tokens(s: Summary) -> str:
    predicted, gamma = s["tokens_per_pass_predicted"], s["gamma"]
    if predicted is not None and s["prediction"] == BY_RANK:
        return f"predicted by teacher forcing, from the acceptance by rank along its completions: {predicted:.2f}"
    if predicted is None and gamma is not None:
        return "not predicted: the draft's acceptance falls with the position, and Eq. 1 has one α"
    if predicted is None or gamma is None:
        return "γ varies from pass to pass; Eq. 1 assumes a single γ"
    if s["prediction"] == BY_POSITION:
        bound = expected_tokens(s.get("alpha_rule", s["alpha"]), gamma)
        return f"predicted from the acceptance by position: {predicted:.2f}; Eq. 1 with a single α: {bound:.2f}"
    of = ", each prompt with its own α and end" if s["prediction"] == BY_ROW else ""
    return f"mean acceptance length; Eq. 1 predicts {predicted:.2f}{of}"


def _by_rank(s: Summary) -> list[tuple[str, str, str]]:
    if not s.get("acceptance_by_rank"):
        return []
    rows = [("acceptance by rank", s["acceptance_by_rank"], "how often a node's first, second, ... child is accepted")]
    if (estimated := s.get("acceptance_by_rank_estimated")) is not None:
        rows.append(("  estimated", estimated, "by teacher forcing, without verifying a tree"))
    return [(name, " ".join(number(share, 3) for share in shares[:4]), said) for name, shares, said in rows]


def _theorem(s: Summary, theorem: str) -> str:
    if s["prediction"] == BY_RANK:
        return f"Theorem {theorem} with the tree's tokens and drafting"
    return f"Theorem {theorem}" + (", from the acceptance by position" if s["prediction"] == BY_POSITION else "")


def _calibration(s: Summary) -> str:
    if s["prediction"] == BY_POSITION:
        return "predicted tokens per pass over what these passes cost (in-sample)"
    if s["prediction"] == BY_RANK:
        return "predicted tokens per pass over what these passes cost"
    return "Theorem 3.8 with v + overhead in place of 1"


def _alpha(s: Summary) -> tuple[str, str, str]:
    if s.get("simulated"):
        return ("α", number(s["alpha"], 3), "as given by simulate.alpha, not measured")
    part = alpha_is_of(s["draft"])
    return (
        "α",
        interval_of(s, "alpha", digits=3),
        "acceptance probability, Cor 3.6" + (f", of the {part}" if part else ""),
    )


def rows(s: Summary) -> list[tuple[str, str, str]]:
    """The table of a run: name, value, and what the value is; first the result, then the numbers behind it."""
    return [*_result(s), *_numbers(s)]


def _result(s: Summary) -> list[tuple[str, str, str]]:
    """The speedup, and whether the completions are the target's."""
    contended = "CONTENDED: unreliable" if s.get("disturbed") else None
    said = "; ".join(filter(None, ["decoding" + _within(s), contended, why_unproved(dict(s)), why_loops(dict(s))]))
    table = [
        ("speedup measured", interval_of(s, "speedup_measured", "speedup"), said),
        ("  end to end", interval_of(s, "speedup_end_to_end"), "with encoder and prefill"),
    ]
    if s["identical"] is not None:
        said = "of completions equal the target's greedy decoding"
        table.append(("identical", f"{100 * s['identical']:.1f}%", said))
        if s.get("numerics") == "invariant":
            table.append(("  logits", "equal", "bitwise, however many tokens are read at once; checked at start"))
    return table + _proof(s)


def _numbers(s: Summary) -> list[tuple[str, str, str]]:
    table = [
        _alpha(s),
        *_under_rule(s),
        *_learnt(s),
        (
            "accepted / drafted",
            number(s["accepted_per_drafted"], 3),
            "draft acceptance rate; not α: a rejection ends a pass",
        ),
        ("tokens per pass (τ)", number(s["tokens_per_pass"]), _predicted_tokens(s)),
        *_by_rank(s),
        (
            "c",
            interval_of(s, "c", digits=3),
            f"draft step / target step, means; a target step takes {1000 * s['target_step_s']:.2f} ms",
        ),
        *(
            [("  per draft step", number(s["c_step"], 3), "one draft step drafts the whole proposal")]
            if "c_step" in s
            else []
        ),
        (
            "verification cost v",
            cost_of_verifying(s),
            "verifying in a pass / target step, means; Theorem 3.8 takes it to be 1",
        ),
        ("speedup predicted", number(s["speedup_predicted"]), _theorem(s, "3.8")),
        ("speedup calibrated", number(s["speedup_calibrated"]), _calibration(s)),
        *_first_token(s),
        *_throughput(s),
        *_memory(s),
        *_energy(s),
        ("operations", number(s["operations"]) + "×", _predicted_operations(s)),
    ]
    if s["quality_metric"]:
        name = METRICS[s["quality_metric"]]
        both = f"{s['quality_baseline']:.1f} / {s['quality_speculative']:.1f}"
        table.append((name, both, "target alone / speculative" + _quality_difference(s)))
    return table


def _first_token(s: Summary) -> list[tuple[str, str, str]]:
    """Reading of prompts and the time to their first token; nothing of a summary that is older than these."""
    if "ttft_s_baseline" not in s:
        return []
    table = []
    if s["end_to_end_predicted"] is not None:
        both = f"{number(s['end_to_end_predicted'])} / {number(s['end_to_end_calibrated'])}"
        table.append(("  end to end", both, "predicted / calibrated, with the prompts read by target and draft"))
    own_s = s["draft_start_s"]
    of_draft = "by the draft: not recorded" if own_s is None else f"{milliseconds(own_s)} by the draft"
    said = f"ms, target alone / speculative; {milliseconds(s['target_start_s'])} ms to read a prompt, {of_draft}"
    table.append(("time to first token", _both_ms(s["ttft_s_baseline"], s["ttft_s"]), said))
    rate, own_rate = s["prompt_tokens_per_s"], s.get("draft_prompt_tokens_per_s")
    if rate is not None:
        said = f"prompt tokens a second, the target; {s['prompt_tokens']:.0f} a prompt"
        said += f"; the draft {own_rate:,.0f}" if own_rate else ""
        if copied := s["prompt_tokens_copied"]:
            total = copied + s["prompt_tokens_read"]
            said += f"; {copied:,} of {total:,} were copied, alone and speculatively (reuse)"
        table.append(("  prefill", f"{rate:,.0f}", said))
    if s["tpot_s_baseline"] is not None:
        both = _both_ms(s["tpot_s_baseline"], s["tpot_s"])
        table.append(("time per output token", both, "ms, target alone / speculative, after the first step or pass"))
    return table


def _both_ms(alone_s: float, ours_s: float | None) -> str:
    return f"{milliseconds(alone_s)} / {NONE if ours_s is None else milliseconds(ours_s)}"


def milliseconds(seconds: float) -> str:
    """Three digits of so many seconds, in milliseconds."""
    return f"{1000 * seconds:.3g}" if seconds < 1 else f"{1000 * seconds:,.0f}"


def _within(s: Summary) -> str:
    """What the interval of a speedup covers: a process has one layout of memory, state of caches and clock."""
    processes = len(s.get("speedup_by_process", ()))
    if processes:
        return f", over {processes} processes"
    return "" if s["speedup_measured"] is None else ", within this process: runs=3 covers more"


def _memory(s: Summary) -> list[tuple[str, str, str]]:
    """What the draft costs in memory."""
    if "memory_ratio" not in s:
        return []
    parts, peak = s["memory_parts"], s["memory_peak_bytes"]
    of_draft = ", ".join(
        f"{name.partition('_')[2]} {size(number)}"
        for name, number in parts.items()
        if name.startswith("draft") and number
    )
    said = f"{size(s['memory_baseline_bytes'])} alone, {size(s['memory_bytes'])} with the draft"
    said += f" ({of_draft})" if of_draft else ""
    rows = [("memory", more_memory(s["memory_ratio"]), said)]
    if peak is not None:
        if s["memory_source"] == "allocator":
            of = "given by the GPU's allocator: the above and working memory"
        else:
            of = "held by the whole process: the above, working memory, Python and PyTorch"
        rows.append(("  at most", size(peak), of))
    return rows


def _energy(s: Summary) -> list[tuple[str, str, str]]:
    """Joules of a token; no row where nothing counts them (`specbench results RUN` says why)."""
    ours, alone = s.get("joules_per_token"), s.get("joules_per_token_baseline")
    if ours is None or not alone:
        return []
    return [("joules a token", f"{alone:.3g} / {ours:.3g}", f"target alone / speculative; {ours / alone:.2f} times")]


def cost_of_verifying(s: Summary) -> str:
    """v with its interval; the same text in the table and in remarks."""
    return interval_of(s, "verify_cost", digits=3)


def proof_statistics(s: Summary) -> dict[str, float | None]:
    """The test statistics by name, standard normal if tokens were drawn from p."""
    return {
        "z": s["proof_z"], "draft": s["proof_z_draft"], "second moment": s["proof_z2"], "order": s["proof_z_order"],
    }  # fmt: skip


def _proof(s: Summary) -> list[tuple[str, str, str]]:
    if s.get("proof_z") is None:
        return []
    seen = "".join(f", {name} {z:+.2f}" for name, z in proof_statistics(s).items() if name != "z" and z is not None)
    return [
        ("z, losslessness", f"{s['proof_z']:+.2f}", f"p={s['proof_p']:.2g}{seen}; ±4 is the limit"),
        ("  power", number(s["proof_power"], 3), "total variation a token that z would have shown 9 times in 10"),
    ]


def _predicted_operations(s: Summary) -> str:
    predicted = s["operations_predicted"]
    return "counted" if predicted is None else f"counted; {_theorem(s, '3.11')}: {predicted:.2f}×"


def _quality_difference(s: Summary) -> str:
    if s["identical"] == 1:
        return ""
    if s["lossless"] and s["temperature"] > 0:
        return "; two samples of one distribution"
    low, high = s.get("quality_difference_low"), s.get("quality_difference_high")
    if low is None or high is None:
        return ""
    verdict = "no difference shown" if low <= 0 <= high else "they differ"
    return f"; {verdict}: {interval(s['quality_difference'], low, high, 1, '+')}"


def _under_rule(s: Summary) -> list[tuple[str, str, str]]:
    if "alpha_rule" not in s:
        return []
    own = (
        "α under the rule",
        interval_of(s, "alpha_rule", digits=3),
        f"of accept={s['accept']}; the predictions below use it",
    )
    variation = (
        "total variation",
        number(s.get("total_variation"), 3),
        "of the next token, from the target's distribution",
    )
    return [own, variation] if s["lossy"] else [own]


def _learnt(s: Summary) -> list[tuple[str, str, str]]:
    if "learnt_positions" not in s:
        return []
    share = "included in the decoding time" if s["learning_timed"] else "not included in the decoding time"
    said = f"{s['learnt_steps']} steps on {s['learnt_positions']} tokens, {share} (draft.online_timed)"
    return [
        ("  first, last third", f"{s['alpha_first']:.3f} / {s['alpha_last']:.3f}", "α as the draft learns"),
        ("learning", f"{s['learning_s']:.1f} s", said),
    ]
