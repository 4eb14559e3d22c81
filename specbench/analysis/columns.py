"""The numbers of a run: one `Column` for each, from which every screen, table and file that shows it is drawn.

A new number is a field of `records.numbers` and a column here, whose `measure` computes it from the prompts of the run
and whose `shown` names the views at whose end it stands (`report.views`).
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

from specbench.analysis.forecast.theorems import BY_POSITION, BY_RANK, BY_ROW
from specbench.formatting import NONE, Column, by_name, interval, more_memory, number, size
from specbench.records.catalog import digest
from specbench.records.looping import why_loops
from specbench.records.marks import why_unproved
from specbench.records.numbers import Measured, Summary
from specbench.records.run_record import PromptRecord
from specbench.theory import expected_tokens


def measured_here(prompts: Sequence[PromptRecord]) -> Measured:
    """The numbers of a summary that their columns compute."""
    found = {one.name: one.measure(prompts) for one in (COLUMNS | MORE).values() if one.measure is not None}
    return cast(Measured, found)


def milliseconds(seconds: float) -> str:
    """Three digits of so many seconds, in milliseconds."""
    return f"{1000 * seconds:.3g}" if seconds < 1 else f"{1000 * seconds:,.0f}"


def _both_ms(alone_s: float, ours_s: float | None) -> str:
    return f"{milliseconds(alone_s)} / {NONE if ours_s is None else milliseconds(ours_s)}"


def _has(*names: str) -> Callable[[Any], bool]:
    """Whether a row has each of these numbers."""
    return lambda row: all(row.get(name) is not None for name in names)


def _decoding(s: Summary) -> str:
    """What the interval of a speedup covers: a process has one layout of memory, state of caches and clock."""
    processes = len(s.get("speedup_by_process", ()))
    within = "" if s["speedup_measured"] is None else ", within this process: runs=3 covers more"
    said = "decoding" + (f", over {processes} processes" if processes else within)
    contended = "CONTENDED: unreliable" if s.get("disturbed") else None
    return "; ".join(filter(None, [said, contended, why_unproved(dict(s)), why_loops(dict(s))]))


def proof_statistics(s: Summary) -> dict[str, float | None]:
    """The test statistics by name, standard normal if tokens were drawn from p."""
    return {
        "z": s["proof_z"], "draft": s["proof_z_draft"], "second moment": s["proof_z2"], "order": s["proof_z_order"],
    }  # fmt: skip


def _proof(s: Summary) -> str:
    seen = "".join(f", {name} {z:+.2f}" for name, z in proof_statistics(s).items() if name != "z" and z is not None)
    return f"p={s['proof_p']:.2g}{seen}; ±4 is the limit"


def _learning(s: Summary) -> str:
    timed = "included in the decoding time" if s["learning_timed"] else "not included in the decoding time"
    return f"{s['learnt_steps']} steps on {s['learnt_positions']} tokens, {timed} (draft.online_timed)"


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


def _first_ranks(name: str) -> Callable[[Any], str]:
    return lambda s: " ".join(number(one, 3) for one in s[name][:4])


def _theorem(theorem: str) -> Callable[[Any], str]:
    def said(s: Summary) -> str:
        if s["prediction"] == BY_RANK:
            return f"Theorem {theorem} with the tree's tokens and drafting"
        return f"Theorem {theorem}" + (", from the acceptance by position" if s["prediction"] == BY_POSITION else "")

    return said


def _calibration(s: Summary) -> str:
    if s["prediction"] == BY_POSITION:
        return "predicted tokens per pass over what these passes cost (in-sample)"
    if s["prediction"] == BY_RANK:
        return "predicted tokens per pass over what these passes cost"
    return "Theorem 3.8 with v + overhead in place of 1"


def _first_token(s: Summary) -> str:
    own_s = s["draft_start_s"]
    of_draft = "by the draft: not recorded" if own_s is None else f"{milliseconds(own_s)} by the draft"
    return f"ms, target alone / speculative; {milliseconds(s['target_start_s'])} ms to read a prompt, {of_draft}"


def _prefill(s: Summary) -> str:
    said = f"prompt tokens per second, the target; {s['prompt_tokens']:.0f} a prompt"
    said += f"; the draft {own_rate:,.0f}" if (own_rate := s.get("draft_prompt_tokens_per_s")) else ""
    if copied := s["prompt_tokens_copied"]:
        total = copied + s["prompt_tokens_read"]
        said += f"; {copied:,} of {total:,} were copied, with and without the draft (reuse)"
    return said


def _throughput(s: Summary) -> str:
    together = "" if s.get("batch", 1) == 1 else f", {s['batch']} prompts together"
    return f"target alone / speculative{together}"


def _latency(s: Summary) -> str:
    wait = s["latency_s"]
    return f"{1000 * s['latency_s_baseline']:.2f} / {number(None if wait is None else 1000 * wait)} ms"


def _memory(s: Summary) -> str:
    of_draft = ", ".join(
        f"{name.partition('_')[2]} {size(count)}"
        for name, count in s["memory_parts"].items()
        if name.startswith("draft") and count
    )
    said = f"{size(s['memory_baseline_bytes'])} without the draft, {size(s['memory_bytes'])} with it"
    return said + (f" ({of_draft})" if of_draft else "")


def _peak(s: Summary) -> str:
    if s["memory_source"] == "allocator":
        return "given by the GPU's allocator: the above and working memory"
    return "held by the whole process: the above, working memory, Python and PyTorch"


def _predicted_operations(s: Summary) -> str:
    predicted = s["operations_predicted"]
    return "counted" if predicted is None else f"counted; {_theorem('3.11')(s)}: {predicted:.2f}×"


def _quality_difference(s: Summary) -> str:
    said = "target alone / speculative"
    if s["identical"] == 1:
        return said
    if s["lossless"] and s["temperature"] > 0:
        return said + "; two samples of one distribution"
    low, high = s.get("quality_difference_low"), s.get("quality_difference_high")
    if low is None or high is None:
        return said
    verdict = "no difference shown" if low <= 0 <= high else "they differ"
    return f"{said}; {verdict}: {interval(s['quality_difference'], low, high, 1, '+')}"


def _joules(s: Summary) -> str:
    ours, alone = s["joules_per_token"] or 0.0, s["joules_per_token_baseline"] or 1.0
    return f"target alone / speculative; {ours / alone:.2f} times"


# In the order of the CSV of `results`, which is stable: new columns go to the end.
COLUMNS = by_name(
    Column("run_id", "record", format=lambda row: digest(str(row["run_id"]))),
    Column("target", "M_p", format=""),
    Column("draft", "M_q", format=""),
    Column("task", "task", format=""),
    Column("temperature", "T", format="g"),
    Column("gamma", "γ", format=""),
    Column("prompts", "prompts", format=""),
    Column("tokens", "tokens", format=""),
    Column("alpha", "α", ".3f", ends="alpha", note="acceptance probability, Cor 3.6"),
    Column("alpha_low"),
    Column("alpha_high"),
    Column(
        "accepted_per_drafted", "accepted / drafted", ".3f",
        note="draft acceptance rate; not α: a rejection ends a pass",
    ),
    Column("tokens_per_pass", "tokens per pass (τ)", note=_predicted_tokens),
    Column("tokens_per_pass_predicted", "predicted"),
    Column(
        "c", "c", ".3f", ends="c",
        note=lambda s: f"draft step / target step, means; a target step takes {1000 * s['target_step_s']:.2f} ms",
    ),
    Column(
        "verify_cost", "verification cost v", ".3f", ends="verify_cost",
        note="verifying in a pass / target step, means; Theorem 3.8 takes it to be 1",
    ),
    Column("speedup_predicted", "speedup predicted", note=_theorem("3.8")),
    Column("speedup_calibrated", "speedup calibrated", note=_calibration),
    Column("speedup_measured", "speedup measured", ends="speedup", note=_decoding),
    Column("speedup_low"),
    Column("speedup_high"),
    Column("operations_predicted", "Thm 3.11", unit="×"),
    Column("quality_metric", format=""),
    Column("quality_baseline", format=".1f"),
    Column(
        "quality_speculative", format=lambda s: f"{s['quality_baseline']:.1f} / {s['quality_speculative']:.1f}",
        note=_quality_difference, when=lambda s: bool(s["quality_metric"]),
    ),
    Column(
        "identical", "identical", lambda s: f"{100 * s['identical']:.1f}%", when=_has("identical"),
        note="of completions equal the target's greedy decoding",
    ),
    Column("device", "device", format=""),
    Column("dtype", "dtype", format=""),
    Column("simulated", "simulated", format=""),
    Column("accept", "rule", format=""),
    Column("lossy", "lossy", format=""),
    Column(
        "alpha_rule", "α under the rule", ".3f", ends="alpha_rule", when=_has("alpha_rule"),
        note=lambda s: f"of accept={s['accept']}; the predictions below use it",
    ),
    Column(
        "total_variation", "total variation", ".3f", when=lambda s: "alpha_rule" in s and s["lossy"],
        note="of the next token, from the target's distribution",
    ),
    Column("prediction", "prediction", format=""),
    Column("operations", "operations", ".2f", unit="×", note=_predicted_operations),
    Column(
        "proof_z", "z, losslessness", format=lambda s: f"{s['proof_z']:+.2f}", when=_has("proof_z"), note=_proof
    ),
    Column("proof_p", "p", ".2g"),
    Column(
        "proof_power", "  power", ".3f", when=_has("proof_z"),
        note="total variation a token that z would have shown 9 times in 10",
    ),
    Column("proof_z2"),
    Column("disturbed", "contended", format=""),
    Column("disturbed_by", format=""),
    Column("batch", "batch", format=""),
    Column("tokens_per_second_baseline", "tokens/s, target alone", ".0f"),
    Column(
        "tokens_per_second", "tokens per second",
        lambda s: f"{s['tokens_per_second_baseline']:.0f} / {number(s.get('tokens_per_second'), 0)}",
        note=_throughput, when=_has("tokens_per_second_baseline"),
    ),
    Column("numerics", "numerics", format=""),
    Column("memory_bytes", format=""),
    Column("memory_baseline_bytes", format=""),
    Column(
        "memory_ratio", "memory", lambda s: more_memory(s["memory_ratio"]), note=_memory, when=_has("memory_ratio")
    ),
    Column(
        "joules_per_token", "joules per token",
        lambda s: f"{s['joules_per_token_baseline']:.3g} / {s['joules_per_token']:.3g}", note=_joules,
        when=lambda s: s.get("joules_per_token") is not None and bool(s.get("joules_per_token_baseline")),
    ),
    Column("joules_per_token_baseline", "joules per token, target alone", ".3g"),
    Column("processing", "processing", format=""),
    Column("looping", "loops", ".0%"),
    Column("speedup_without_loops", "without loops", ends="speedup_without_loops"),
    Column("context", "context", format=""),
)  # fmt: skip

# Those that the numbers of one run have beside them.
MORE = by_name(
    Column("speedup_end_to_end", "  end to end", ends="speedup_end_to_end", note="with encoder and prefill"),
    Column("alpha_first", "  first, last third", lambda s: f"{s['alpha_first']:.3f} / {s['alpha_last']:.3f}",
           note="α as the draft learns", when=_has("learnt_positions")),
    Column("learning_s", "learning", ".1f", unit=" s", note=_learning, when=_has("learnt_positions")),
    Column("acceptance_by_rank", "acceptance by rank", _first_ranks("acceptance_by_rank"),
           note="how often a node's first, second, ... child is accepted",
           when=lambda s: bool(s.get("acceptance_by_rank"))),
    Column("acceptance_by_rank_estimated", "  estimated", _first_ranks("acceptance_by_rank_estimated"),
           note="by teacher forcing, without verifying a tree",
           when=lambda s: bool(s.get("acceptance_by_rank")) and s.get("acceptance_by_rank_estimated") is not None),
    Column("c_step", "  per draft step", ".3f", note="one draft step drafts the whole proposal", when=_has("c_step")),
    Column("end_to_end_predicted", "  end to end",
           lambda s: f"{number(s['end_to_end_predicted'])} / {number(s['end_to_end_calibrated'])}",
           note="predicted / calibrated, with the prompts read by target and draft",
           when=_has("ttft_s_baseline", "end_to_end_predicted")),
    Column("ttft_s_baseline", "time to first token", lambda s: _both_ms(s["ttft_s_baseline"], s["ttft_s"]),
           note=_first_token, when=_has("ttft_s_baseline")),
    Column("prompt_tokens_per_s", "  prefill", ",.0f", note=_prefill,
           when=_has("ttft_s_baseline", "prompt_tokens_per_s")),
    Column("tpot_s_baseline", "time per output token", lambda s: _both_ms(s["tpot_s_baseline"], s["tpot_s"]),
           note="ms, target alone / speculative, after the first step or pass",
           when=_has("ttft_s_baseline", "tpot_s_baseline")),
    Column("latency_s_baseline", "  latency of a prompt", _latency, note="per token, target alone / speculative",
           when=lambda s: s.get("tokens_per_second_baseline") is not None and s.get("batch", 1) != 1),
    Column("memory_peak_bytes", "  at most", lambda s: size(s["memory_peak_bytes"]), note=_peak,
           when=_has("memory_ratio", "memory_peak_bytes")),
)  # fmt: skip
