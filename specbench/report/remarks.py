"""Warnings and remarks that the numbers of a run's summary do not show, one sentence each."""

from specbench.analysis.columns import proof_statistics
from specbench.analysis.costs.slow import OVER, UNUSUAL
from specbench.analysis.distinct import said
from specbench.formatting import number
from specbench.nouns import with_noun
from specbench.records.looping import why_loops
from specbench.records.marks import WEAKEST, prompts_for_proof
from specbench.records.numbers import Summary
from specbench.report.views import cost_of_verifying
from specbench.stats import FEW_PROMPTS


def remarks(s: Summary) -> list[str]:
    """Sentences on results that could mislead a reader."""
    lines = []
    if s.get("simulated"):
        lines.append(simulated(s))
    elif s.get("lossy"):
        lines.append(
            f"LOSSY: accept={s['accept']} changes the distribution of completions; the speedup is not lossless"
        )
    elif not s["lossless"] and s.get("proof_tokens"):
        lines.append(_disproof(s))
    elif not s["lossless"] and s.get("numerics") == "invariant":
        lines.append(
            "NOT LOSSLESS: completions differ although numerics are invariant, so no speedup is reported; please "
            "report this"
        )
    elif not s["lossless"]:
        lines.append(
            "NOT LOSSLESS: completions differ by more than rounding, so no speedup is reported; please report this"
        )
    elif s["identical"] is not None and s["identical"] < 1:
        reason = s.get("numerics_reason")
        exact = "numerics=invariant gives identical completions" if reason is None else f"numerics are fast: {reason}"
        lines.append(
            f"{round((1 - s['identical']) * s['prompts'])} of {s['prompts']} completions differ: two tokens nearly "
            f"tied, and {s['dtype']} rounding decided; {exact}"
        )
    elif (prompts := prompts_for_proof(dict(s))) is not None:
        lines.append(
            f"NOT PROVED at this size: over {s['proof_tokens']} sampled tokens the proof would have missed a fault of "
            f"less than {s['proof_power']:.2f} total variation per token; {prompts} prompts would bring that to "
            f"{WEAKEST}"
        )
    if s.get("accept") == "block":
        lines.append("Eq. 1 and Theorem 3.8 assume Algorithm 1; block verification emits at least as many tokens")
    if s["speedup_measured"] is not None and s["speedup_measured"] < 1 and not s.get("disturbed"):
        drafting, checking = s["drafting_per_pass"], s["checking_per_pass"]
        most = "drafting" if drafting > checking - 1 else "verifying several tokens at once"
        lines.append(
            f"slower than the target alone: a pass emits {s['tokens_per_pass']:.2f} tokens and takes "
            f"{drafting + checking + s['accepting_per_pass']:.2f} target steps, mostly {most}"
        )
    if s.get("disturbed"):
        lines.append(disturbed(s))
    elif (high := s.get("verify_cost_high")) is not None and high + s["overhead"] < 1:
        lines.append(
            f"v = {cost_of_verifying(s)} is below 1: on this machine a step over one token takes longer than a pass "
            "over several, whose kernels are faster"
        )
    if (slow := uneven(s)) is not None:
        lines.append(slow)
    if (loops := why_loops(dict(s))) is not None:
        lines.append(
            f"LOOPS: {loops}. Any draft looks good on repeated text (docs/run.md); sampling.repetition_penalty=1.2 or "
            "sampling.temperature=1 give other text"
        )
    if s.get("grown") is not None:
        lines.append(
            f"each completion was added to the draft's store after it was decoded ({s['grown']} tokens before the "
            "last): α and the speedup depend on the order of the prompts"
        )
    if s.get("learnt_positions") is not None:
        lines.append("the draft learns from prompt to prompt: α and the speedup depend on the order of the prompts")
    if s.get("until") is not None:
        lines.append(_looked(s))
    if len(measured := s.get("speedup_by_process", [])) > 1:
        lines.append(
            f"{len(measured)} processes measured a speedup of {', '.join(map(number, measured))}: the intervals of v "
            "and the speedups cover the differences between them"
        )
    if (different := s.get("distinct_prompts")) is not None:
        lines.append(said(s["prompts"], different))
    if s.get("prompts_cut"):
        lines.append(f"{s['prompts_cut']} of {s['prompts']} prompts were cut at task.max_source_tokens")
    if s["prompts"] < FEW_PROMPTS:
        lines.append(f"only {with_noun(s['prompts'], 'prompt')}: the intervals are rough")
    return lines


def uneven(s: Summary) -> str | None:
    """A remark that many steps or passes took much longer than usual; None if few did, or if it is unknown."""
    passes, steps = s.get("slow_passes", 0.0), s.get("slow_steps", 0.0)
    if max(passes, steps) < UNUSUAL or s.get("disturbed"):
        return None
    return (
        f"uneven: {passes:.0%} of the passes took more than {OVER:g} times their median, and {steps:.0%} of the "
        "target's own steps; the speedup of another process may differ by more than the interval says: runs=3 "
        "measures that"
    )


def _looked(s: Summary) -> str:
    """Where and why a run with `until` stopped, and what its intervals are."""
    value, low, high = s["speedup_measured"], s["speedup_low"], s["speedup_high"]
    reach = "none" if value is None or low is None or high is None else f"±{100 * (high - low) / (2 * value):.1f}%"
    ended = "stopped" if s["prompts"] < s["prompts_offered"] else "not stopped"
    return (
        f"until={100 * s['until']:g}%: {ended} after {s['prompts']} of {s['prompts_offered']} prompts, interval of the "
        f"speedup {reach}; {s['looks']} of {s['looks_planned']} looks, so each interval has level "
        f"{100 * s['level']:.2f}% and all looks together 95%"
    )


def simulated(s: Summary) -> str:
    """The remark that acceptance was simulated, and which numbers were still measured."""
    return (
        f"SIMULATED: drafted tokens were accepted by chance at simulate.alpha={s['alpha']:g}. Times are measured; α "
        "was chosen, speedups hold for that α only, and the completions are meaningless"
    )


def disturbed(s: Summary) -> str:
    """The remark that the machine was shared or held back, with its signs."""
    return (
        f"CONTENDED: {s['disturbed_by']}. c, v and the speedups are unreliable, tables leave them out, and nothing is "
        "concluded from them; α and the completions are valid. Run it again with force=true when nothing else runs"
    )


def _disproof(s: Summary) -> str:
    """Why sampled completions are not the target's own."""
    if s["proof_outside"]:
        seen = f"{s['proof_outside']} of {s['proof_tokens']} sampled tokens have no probability under the target"
    else:
        z = proof_statistics(s)
        worst = max(z, key=lambda name: abs(z[name] or 0.0))
        seen = f"over {s['proof_tokens']} sampled tokens the {worst} statistic is {z[worst]:+.1f}"
    return f"NOT LOSSLESS: {seen}: not drawn from the target, so no speedup is reported; please report this"
