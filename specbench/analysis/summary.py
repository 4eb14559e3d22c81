"""One row of numbers from raw prompts. Pure arithmetic on records; no torch.

Each quantity that is commonly called 'acceptance rate' has its own name here: `alpha` (Corollary 3.6),
`accepted_per_drafted`, acceptance by position, and tokens per pass.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Literal, cast

import numpy as np

from specbench.analysis.acceptance.by_position import (
    acceptance_by_position,
    estimated_by_rank,
    forecast_tokens,
    levels,
    of_trees,
)
from specbench.analysis.columns import measured_here
from specbench.analysis.costs import operations, pass_costs, rows_of, seconds_of, throughput
from specbench.analysis.costs.disturbance import Disturbance, disturbance
from specbench.analysis.costs.mean_costs import accept_cost, draft_cost, experts_read, mean_step_s, verify_cost
from specbench.analysis.costs.slow import slow
from specbench.analysis.degenerate import degenerate
from specbench.analysis.distinct import groups_of
from specbench.analysis.explain import is_explained, waterfall
from specbench.analysis.first_token import first_token_columns
from specbench.analysis.forecast import expected_of_rows
from specbench.analysis.forecast.theorems import (
    UNPREDICTED,
    acceptance_when_asked,
    by_equation_1,
    by_position,
    by_rank,
    by_rows,
)
from specbench.analysis.proof import UNPROVED, prove
from specbench.analysis.several_processes import of_processes
from specbench.config.drafts import DRAFT_KINDS
from specbench.records.numbers import (
    Counted,
    Energy,
    Grown,
    Learnt,
    LenienceRow,
    Measured,
    Repeated,
    Speedups,
    UnderLenience,
    UnderRule,
)
from specbench.records.passes_run import loop_of
from specbench.records.run_record import DECODING_MODES, DecodingMode, PromptRecord, RunRecord
from specbench.records.served import is_served
from specbench.stats import Interval, over_rows, ratio, ratio_of_ratios

Part = Literal["start_s", "decode_s"]
PARTS: tuple[tuple[Part, ...], ...] = (("decode_s",), ("decode_s", "start_s"))  # decoding, and end to end
NO_SPEED = cast(Speedups, dict.fromkeys(Speedups.__annotations__))


def summarise(
    prompts: Sequence[PromptRecord],
    *,
    gamma: int | None,
    greedy: bool,
    c_hat: float,
    max_new_tokens: int,
    falls_with_position: bool,
    at_once: bool = False,
    batch: int = 1,
    level: float | None = None,
) -> Measured:
    """The measured and predicted columns of a run, without what the config and the completions say.

    `gamma` is None if it changed from pass to pass: then nothing is predicted, for the equations have one gamma.
    `falls_with_position`: the draft is accepted less often the further ahead it drafts, so that predictions are made
    from the acceptance at each position (`analysis.forecast.theorems`). `at_once`: one step of the draft gives a whole
    proposal; `c_step` is its time. Speedups are None if the completions differ by more than rounding, or sampled
    completions fail their proof: a faster wrong answer has no speed. Under a lossy rule completions may differ, and
    speeds are given: `lossy` goes with them. Under a rule with an alpha of its own that is `alpha_rule` (along the
    target's own completion), and the predictions are made from it.

    `level` applies to all intervals of a run that looked at them more than once (`analysis.looks`). For a run in
    several processes (`analysis.several_processes`) the intervals of times cover the differences between them.
    """
    passes = [a_pass for prompt in prompts for a_pass in prompt["speculative"].passes]
    alpha = _probability([(sum(p["beta"]), len(p["beta"])) for p in prompts], groups_of(prompts), level)
    lossy = is_lossy(prompts)
    ruled = under_rule(prompts, level)
    drafted = sum(a_pass.drafted for a_pass in passes)
    spent, emitted = operations(passes, c_hat)
    costs = pass_costs(prompts)
    c, v, step_s = draft_cost(prompts, level), verify_cost(prompts, level), mean_step_s(prompts)
    proof = prove(prompts)
    differing = [p["difference"] for p in prompts if p["difference"] is not None]
    wrong = any(not one.is_rounding for one in differing) or (proof is not None and proof.failed)
    counted: Counted = {
        "prompts": len(prompts),
        "tokens": sum(len(p["baseline"].tokens) for p in prompts),
        "passes": len(passes),
        "alpha": alpha.value,
        "alpha_low": alpha.low,
        "alpha_high": alpha.high,
        "accepted_per_drafted": sum(a_pass.accepted for a_pass in passes) / drafted if drafted else None,
        "tokens_per_pass": emitted / len(passes),
        "c": None if c is None else c.value,
        "c_low": None if c is None else c.low,
        "c_high": None if c is None else c.high,
        "verify_cost": v.value,
        "verify_cost_low": v.low,
        "verify_cost_high": v.high,
        "overhead": accept_cost(prompts),
        "target_step_s": step_s,
        # What the mean pass takes, in mean target steps.
        "drafting_per_pass": costs.drafting,
        "checking_per_pass": costs.checking,
        "accepting_per_pass": costs.accepting,
        "c_hat": c_hat,
        "operations": spent / emitted,
        "drafted_per_pass": drafted / len(passes),
        "identical": 1 - sum(map(_differs, prompts)) / len(prompts) if greedy else None,
        "lossless": not wrong and not lossy,
        "lossy": lossy,
        "acceptance_by_position": acceptance_by_position(passes),
        "tokens_per_pass_histogram": {
            str(tokens): count for tokens, count in sorted(Counter(a_pass.emitted for a_pass in passes).items())
        },
    }
    if (different := len(set(groups_of(prompts)))) < len(prompts):
        counted["distinct_prompts"] = different
    if (read := experts_read(prompts, gamma)) is not None:
        counted["experts_read"] = read
    rates = throughput(prompts, batch, wrong)
    if at_once and c is not None:  # a draft step for each proposal
        counted["c_step"] = c.value * sum(map(levels, passes)) / sum(one.drafted > 0 for one in passes)
    trees = of_trees(passes)
    if trees:
        trees["acceptance_by_rank_estimated"] = estimated_by_rank(prompts)
        tokens = forecast_tokens(prompts)
        predicted = UNPREDICTED if tokens is None else by_rank(tokens, trees["depth_per_pass"], costs, counted)
    elif gamma is None:
        predicted = UNPREDICTED
    elif falls_with_position:
        predicted = by_position(acceptance_when_asked(prompts, gamma), costs, counted)
    elif batch > 1 and not ruled:
        predicted = by_rows(expected_of_rows(prompts, gamma, max_new_tokens), rates, counted)
    else:
        predicted = by_equation_1(ruled.get("alpha_rule", alpha.value), gamma, counted)
    measured = NO_SPEED if wrong else speedups(prompts, level=level)
    spread: Repeated = {} if wrong else repeated(prompts)
    lenient: UnderLenience = {}
    if all("lenient" in prompt for prompt in prompts):
        lenient = {"lenience": under_lenience(prompts, level)}
    proved = UNPROVED if proof is None else proof.columns()
    repeats = degenerate(prompts, None if wrong else partial(speedups, level=level))
    disturbed = _worst([disturbance(one, {**counted, **measured}) for one in of_processes(prompts)]).columns()
    taken_in = [prompt["grown"] for prompt in prompts if "grown" in prompt]
    grown: Grown = {"grown": max(taken_in)} if taken_in else {}
    return {
        **counted,
        **grown,
        **learnt(prompts),
        **rates,
        **first_token_columns(prompts, predicted, wrong),
        **trees,
        **proved,
        **disturbed,
        **slow(prompts),
        **loop_of(prompts),
        **energy(prompts),
        **repeats,
        **measured_here(prompts),
        **ruled,
        **lenient,
        **predicted,
        **measured,
        **spread,
    }


def learnt(prompts: Sequence[PromptRecord]) -> Learnt:
    """The prompts that a learning draft learnt from, and alpha before and after; empty for other drafts."""
    lessons = [prompt["online"] for prompt in prompts if "online" in prompt]
    if not lessons:
        return {}
    third = -(-len(prompts) // 3)
    first, last = (
        sum(sum(prompt["beta"]) for prompt in some) / sum(len(prompt["beta"]) for prompt in some)
        for some in (prompts[:third], prompts[-third:])
    )
    return {
        "learnt_positions": sum(lesson.positions for lesson in lessons),
        "learnt_steps": sum(lesson.steps for lesson in lessons),
        "learning_s": sum(lesson.seconds for lesson in lessons),
        "learning_timed": lessons[0].timed,
        "alpha_first": first,
        "alpha_last": last,
    }


def energy(prompts: Sequence[PromptRecord]) -> Energy:
    """Joules of a token with and without the draft, totals over all prompts; None if a prompt has none."""
    spent: dict[DecodingMode, list[float | None]] = {
        way: [prompt.get("used", {}).get(way, {}).get("joules") for prompt in prompts] for way in DECODING_MODES
    }
    per_token = {
        way: sum(known) / sum(len(prompt[way].tokens) for prompt in prompts)
        if len(known := [one for one in joules if one is not None]) == len(prompts)
        else None
        for way, joules in spent.items()
    }
    return {"joules_per_token": per_token["speculative"], "joules_per_token_baseline": per_token["baseline"]}


def _probability(sums: Sequence[tuple[float, int]], groups: Sequence[int], level: float | None = None) -> Interval:
    """A mean probability from its sum and the number of tokens of each prompt."""
    return over_rows(sums, ratio, scale="probability", level=level, groups=groups)


def is_lossy(prompts: Sequence[PromptRecord]) -> bool:
    """Whether they were decoded under a lossy rule."""
    return all("total_variation" in prompt.get("rule", {}) for prompt in prompts)


def under_rule(prompts: Sequence[PromptRecord], level: float | None = None) -> UnderRule:
    """The acceptance probability of a rule with an alpha of its own, and its interval.

    For a lossy rule also the mean total variation between the emitted token and the target's own.
    """
    if not all("rule" in prompt for prompt in prompts):
        return {}
    sums = [(p["rule"]["accept_probability"], len(p["beta"])) for p in prompts]
    accepted = _probability(sums, groups_of(prompts), level)
    found: UnderRule = {
        "alpha_rule": accepted.value,
        "alpha_rule_low": accepted.low,
        "alpha_rule_high": accepted.high,
    }
    if is_lossy(prompts):
        varied = sum(p["rule"]["total_variation"] for p in prompts)
        found["total_variation"] = varied / sum(len(p["beta"]) for p in prompts)
    return found


def under_lenience(prompts: Sequence[PromptRecord], level: float | None = None) -> list[LenienceRow]:
    """alpha(l) with its interval for each lenience of the prompts, 1 first, and the mean total variation of each."""
    tokens = sum(len(prompt["beta"]) for prompt in prompts)
    rows: list[LenienceRow] = []
    for key in ("1", *prompts[0]["lenient"]):
        sums = [sum(prompt["beta"]) if key == "1" else prompt["lenient"][key] for prompt in prompts]
        columns = [(total, len(prompt["beta"])) for total, prompt in zip(sums, prompts, strict=True)]
        alpha = _probability(columns, groups_of(prompts), level)
        varied = 0.0 if key == "1" else sum(prompt["total_variation"][key] for prompt in prompts) / tokens
        rows.append({
            "lenience": float(key), "alpha": alpha.value, "alpha_low": alpha.low, "alpha_high": alpha.high,
            "total_variation": varied,
        })  # fmt: skip
    return rows


def speedups(prompts: Sequence[PromptRecord], *, level: float | None = None) -> Speedups:
    """Measured speedups: time per token of the baseline, divided by speculative decoding's, totals over all prompts.

    At T = 0, with equal completions, this is the ratio of the times; at T > 0, with different lengths, it is still
    fair. The intervals cover how prompts differ, within each prompt its steps and its passes, and the differences
    between processes if there are several. They cover a machine that was slower for minutes only if it was slower on
    some prompts or in some processes and not in others: one process's intervals hold within this process.
    """
    variances = [variances_of(prompt) for prompt in prompts]
    decode, whole = (
        over_rows(
            [times_of(p, parts) for p in prompts], ratio_of_ratios, variances, level=level,
            by_process=by_process(prompts, parts), groups=groups_of(prompts),
        )
        for parts in PARTS
    )  # fmt: skip
    return {
        "speedup_measured": decode.value,
        "speedup_low": decode.low,
        "speedup_high": decode.high,
        "speedup_end_to_end": whole.value,
        "speedup_end_to_end_low": whole.low,
        "speedup_end_to_end_high": whole.high,
    }


def by_process(prompts: Sequence[PromptRecord], parts: Sequence[Part]) -> list[float]:
    """The speedup that each of several processes measured; empty for a run in one process."""
    runs = of_processes(prompts)
    if len(runs) < 2:
        return []
    return [float(ratio_of_ratios(np.sum([times_of(prompt, parts) for prompt in one], axis=0))) for one in runs]


def repeated(prompts: Sequence[PromptRecord]) -> Repeated:
    """How much the speedup differs between processes; nothing for a run in one process."""
    found = by_process(prompts, PARTS[0])
    if not found:
        return {}
    return {"speedup_by_process": found, "speedup_between": float(np.std(np.log(found), ddof=1))}


def _worst(found: Sequence[Disturbance]) -> Disturbance:
    """The most disturbed of several processes."""
    return max(found, key=lambda one: (len(one.signs), one.waited or 0.0))


def _differs(prompt: PromptRecord) -> bool:
    return bool(prompt.get("difference")) or prompt["baseline"].tokens != prompt["speculative"].tokens


def times_of(prompt: PromptRecord, parts: Sequence[Part]) -> tuple[float, int, float, int]:
    """Seconds and tokens of the baseline, then of speculative decoding, over these parts of a decoding."""
    baseline, speculative = prompt["baseline"], prompt["speculative"]
    return (
        sum(getattr(baseline, part) for part in parts),
        len(baseline.tokens),
        sum(getattr(speculative, part) for part in parts),
        len(speculative.tokens),
    )


def variances_of(prompt: PromptRecord) -> tuple[float, float, float, float]:
    """The variance of each of `times_of` if the steps and the passes of this prompt were drawn again."""
    steps_s, passes_s = (
        np.array(seconds_of(trace)) / rows_of(trace) for trace in (prompt["baseline"], prompt["speculative"])
    )
    return len(steps_s) * float(np.var(steps_s)), 0.0, len(passes_s) * float(np.var(passes_s)), 0.0


def explained(record: RunRecord) -> RunRecord:
    """A record with the explanation of its speedup."""
    return {**record, "explanation": waterfall(record).explanation if is_explained(record) else None}


def resummarised(record: RunRecord) -> RunRecord:
    """A record whose summary is recomputed from its raw prompts by this version.

    Left as it is if its kind of draft is of a package that is not installed, or a server was measured.
    """
    if is_served(record):
        return record
    summary, config = record["summary"], record["config"]
    kind = DRAFT_KINDS.get(config["draft"]["kind"])
    if kind is None:
        return record
    measured = summarise(
        record["prompts"],
        gamma=summary["gamma"],
        greedy=summary["temperature"] == 0 and not summary["simulated"],
        c_hat=summary["c_hat"],
        max_new_tokens=config["max_new_tokens"],
        falls_with_position=kind.falls_with_position and not summary["simulated"],
        at_once=kind.at_once,
        batch=config.get("batch", 1),
        level=summary.get("level"),
    )
    return explained({**record, "summary": {**summary, **measured}})


def completed(record: RunRecord) -> RunRecord:
    """A record whose summary has what its prompts tell of loops, slow passes and first tokens, also if it is older."""
    if is_served(record):
        return record
    summary, prompts = record["summary"], record["prompts"]
    timed = summary["speedup_measured"] is not None
    if "looping" not in summary:
        summary = {**summary, **degenerate(prompts, speedups if timed else None)}
    if "slow_passes" not in summary:
        summary = {**summary, **slow(prompts)}
    if "ttft_s_baseline" not in summary:
        summary = {**summary, **first_token_columns(prompts, summary, not timed)}
    return {**record, "summary": summary}
