"""From raw prompts to one row of numbers. Pure arithmetic over what a record holds; no torch.

Every quantity that others call 'acceptance rate' has its own name here: `alpha` (Corollary 3.6),
`accepted_per_drafted`, acceptance by position, and tokens per pass.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from specbench import theory
from specbench.measure.by_position import acceptance_by_position
from specbench.stats import bootstrap, ratio, ratio_of_ratios

RawPrompt = dict[str, Any]
PREDICTED = ("speedup_predicted", "speedup_calibrated", "speedup_explained")  # not measured, so given in any case


def summarise(
    prompts: Sequence[RawPrompt], *, gamma: int | None, greedy: bool, c_hat: float, resamples: int, seed: int
) -> dict[str, Any]:
    """The measured and predicted columns of a run, without what the config and the texts say.

    `gamma` is None where it changed from pass to pass: then nothing is predicted, for the equations have one gamma.
    Speedups are None where the texts differ by more than rounding: a faster wrong answer has no speed. Under a lossy
    rule texts may differ, and speeds are given: `lossy` goes with them, `alpha_rule` is the share that the rule keeps
    (along the target's own text), and the predictions are made from it.
    """
    steps_s = [step for prompt in prompts for step in prompt["baseline"]["steps_s"]]
    passes = [a_pass for prompt in prompts for a_pass in prompt["speculative"]["passes"]]
    alpha = bootstrap([(sum(p["beta"]), len(p["beta"])) for p in prompts], ratio, resamples, seed)
    lossy = all("rule" in prompt for prompt in prompts)
    ruled = under_rule(prompts, resamples, seed) if lossy else {}
    alpha_used = ruled.get("alpha_rule", alpha.value)
    step_s = median(steps_s)
    full = [a_pass for a_pass in passes if gamma is None or a_pass["drafted"] == gamma]
    drafting = [a_pass["draft_s"] / a_pass["drafted"] for a_pass in passes if a_pass["drafted"]]
    c = median(drafting) / step_s if drafting else None
    verify_cost = median(a_pass["verify_s"] for a_pass in full) / step_s if full else None
    overhead = median(a_pass["accept_s"] for a_pass in passes) / step_s
    drafted = sum(a_pass["drafted"] for a_pass in passes)
    emitted = sum(a_pass["emitted"] for a_pass in passes)
    differing = [p["difference"] for p in prompts if p.get("difference")]
    wrong = [difference for difference in differing if not difference["is_rounding"]]
    summary: dict[str, Any] = {
        "prompts": len(prompts),
        "tokens": sum(len(p["baseline"]["tokens"]) for p in prompts),
        "passes": len(passes),
        "alpha": alpha.value,
        "alpha_low": alpha.low,
        "alpha_high": alpha.high,
        **ruled,
        "accepted_per_drafted": sum(a_pass["accepted"] for a_pass in passes) / drafted if drafted else None,
        "tokens_per_pass": emitted / len(passes),
        "tokens_per_pass_predicted": theory.expected_tokens(alpha_used, gamma) if gamma else None,
        "c": c,
        "verify_cost": verify_cost,
        "overhead": overhead,
        "target_step_s": step_s,
        "c_hat": c_hat,
        "operations_predicted": theory.operations_increase(alpha_used, gamma, c_hat) if gamma else None,
        "drafted_per_pass": drafted / len(passes),
        "identical": 1 - sum(map(_differs, prompts)) / len(prompts) if greedy else None,
        "lossless": not wrong and not lossy,
        "lossy": lossy,
        "acceptance_by_position": acceptance_by_position(passes),
        "tokens_per_pass_histogram": dict(sorted(Counter(a_pass["emitted"] for a_pass in passes).items())),
    }
    if all("lenient" in prompt for prompt in prompts):
        summary["lenience"] = under_lenience(prompts, resamples, seed)
    found = speedups(prompts, summary, gamma=gamma, resamples=resamples, seed=seed)
    return summary | (dict.fromkeys(found, None) | {k: found[k] for k in PREDICTED} if wrong else found)


def under_rule(prompts: Sequence[RawPrompt], resamples: int, seed: int) -> dict[str, Any]:
    """The share of drafted tokens that a run's lossy rule keeps, with its interval, and the mean total variation that
    the next token strays from the target's."""
    kept = bootstrap([(p["rule"]["kept"], len(p["beta"])) for p in prompts], ratio, resamples, seed)
    strayed = sum(p["rule"]["strayed"] for p in prompts) / sum(len(p["beta"]) for p in prompts)
    return {"alpha_rule": kept.value, "alpha_rule_low": kept.low, "alpha_rule_high": kept.high, "strayed": strayed}


def under_lenience(prompts: Sequence[RawPrompt], resamples: int, seed: int) -> list[dict[str, float | None]]:
    """alpha(l) with its interval for each lenience of the prompts, 1 first; and the mean total variation that the next
    token strays from the target's."""
    tokens = sum(len(prompt["beta"]) for prompt in prompts)
    rows: list[dict[str, float | None]] = []
    for key in ("1", *prompts[0]["lenient"]):
        sums = [sum(prompt["beta"]) if key == "1" else prompt["lenient"][key] for prompt in prompts]
        columns = [(total, len(prompt["beta"])) for total, prompt in zip(sums, prompts, strict=True)]
        alpha = bootstrap(columns, ratio, resamples, seed)
        strayed = 0.0 if key == "1" else sum(prompt["strayed"][key] for prompt in prompts) / tokens
        rows.append({
            "lenience": float(key), "alpha": alpha.value, "alpha_low": alpha.low, "alpha_high": alpha.high,
            "strayed": strayed,
        })  # fmt: skip
    return rows


def speedups(
    prompts: Sequence[RawPrompt], summary: dict[str, Any], *, gamma: int | None, resamples: int, seed: int
) -> dict[str, Any]:
    """Predicted, calibrated and measured speedups.

    Measured is time per token of the baseline over that of speculative decoding, totals over all prompts: at T = 0,
    where the texts are the same, the ratio of the times; at T > 0, where they have other lengths, still fair.
    """
    alpha, c, verify_cost = summary.get("alpha_rule", summary["alpha"]), summary["c"], summary["verify_cost"]
    decode = bootstrap([_times(p, ("decode_s",)) for p in prompts], ratio_of_ratios, resamples, seed)
    whole = bootstrap([_times(p, ("decode_s", "start_s")) for p in prompts], ratio_of_ratios, resamples, seed)
    known = c is not None and verify_cost is not None
    return {
        "speedup_predicted": theory.walltime_improvement(alpha, gamma, c) if gamma and c is not None else None,
        "speedup_calibrated": (
            theory.walltime_improvement(alpha, gamma, c, verify_cost + summary["overhead"]) if gamma and known else None
        ),
        "speedup_explained": (
            summary["tokens_per_pass"]
            / ((gamma or summary["drafted_per_pass"]) * c + verify_cost + summary["overhead"])
            if known
            else None
        ),
        "speedup_measured": decode.value,
        "speedup_low": decode.low,
        "speedup_high": decode.high,
        "speedup_end_to_end": whole.value,
        "speedup_end_to_end_low": whole.low,
        "speedup_end_to_end_high": whole.high,
    }


def _differs(prompt: RawPrompt) -> bool:
    return bool(prompt.get("difference")) or prompt["baseline"]["tokens"] != prompt["speculative"]["tokens"]


def _times(prompt: RawPrompt, parts: Sequence[str]) -> tuple[float, int, float, int]:
    """Seconds and tokens of the baseline, then of speculative decoding."""
    baseline, speculative = prompt["baseline"], prompt["speculative"]
    return (
        sum(baseline[part] for part in parts),
        len(baseline["tokens"]),
        sum(speculative[part] for part in parts),
        len(speculative["tokens"]),
    )
