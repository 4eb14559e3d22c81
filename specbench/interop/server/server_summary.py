"""The summary of a measured server, from what each request showed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from urllib.parse import urlsplit

import numpy as np

from specbench.analysis.costs.disturbance import SLACK, of_steps
from specbench.config.model import name_of
from specbench.config.schema import task_label
from specbench.config.server import WITHOUT, ServerConfig
from specbench.environment import Environment, hardware, time_stamp
from specbench.errors import UserError
from specbench.interop.readings.estimate import estimate
from specbench.interop.readings.reading import Reading, Tally, together
from specbench.interop.server.verdict import Verdict
from specbench.interop.server.when_sent import Load
from specbench.records.numbers import PositionCounts
from specbench.records.run_record import PromptRecord
from specbench.records.served import Answer, ServedPrompt, ServedSummary
from specbench.stats import Interval, over_rows, ratio_of_ratios

NONE = Interval(float("nan"), None, None)
HERE = ("127.0.0.1", "localhost", "::1")
SINGLY = 0.9  # of the tokens of a stream that came one by one, at least, for steps of the target alone


@dataclass(frozen=True)
class Counted:
    """The server's counts of all requests, and what follows from them; None if it counts nothing."""

    drafted: int | None = None
    accepted: int | None = None
    passes: int | None = None
    tokens_per_pass: float | None = None
    drafted_per_pass: float | None = None
    alpha: float | None = None
    low: float | None = None
    high: float | None = None
    method: str | None = None
    by_position: tuple[PositionCounts, ...] = ()
    source: str | None = None
    rejections: int | None = None


def counted(served: Sequence[ServedPrompt], gamma: int | None) -> Counted:
    """Acceptance by the server's own counts. Raises UserError if they contradict each other."""
    known = [one["drafted"] for one in served if one["drafted"].counts is not None]
    if not known:
        return Counted()
    tallies = []
    for one in known:
        counts = one.counts
        assert counts is not None
        where = f"the counts of {one.counted_by}"
        if not counts.drafted and not counts.passes:
            continue
        tallies.append(Tally.of_sums(counts.accepted, counts.drafted, counts.passes, where, counts.at_position))
    source = known[0].counted_by
    if not tallies:
        return Counted(0, 0, None, None, None, source=source)
    whole = together(tallies)
    drafted, accepted = whole.drafted or 0, whole.accepted
    # Each pass writes one token more than it accepts, and the prompt's own pass writes the first.
    written = sum(one["drafted"].tokens - 1 for one in served if one["drafted"].tokens)
    without = max(0, written - accepted - (whole.passes or 0))
    passes = (whole.passes or 0) + without
    found = estimate(Reading([], tallies, by_request=len(tallies) > 1), gamma)
    places = _by_position(known)
    return Counted(
        drafted, accepted, passes or None, (accepted + passes) / passes if passes else None,
        drafted / whole.passes if whole.passes else None,
        None if found is None else found.alpha, None if found is None else found.low,
        None if found is None else found.high, None if found is None else found.method, tuple(places), source,
        whole.rejections,
    )  # fmt: skip


def _by_position(answers: Sequence[Answer]) -> list[PositionCounts]:
    """How often each position was reached and accepted; the few passes that drafted less count as reaching it."""
    counts = [one.counts for one in answers if one.counts is not None and one.counts.passes is not None]
    longest = max((len(one.at_position) for one in counts), default=0)
    taken = [sum(one.at_position[place] for one in counts if place < len(one.at_position)) for place in range(longest)]
    reached = [sum(one.passes or 0 for one in counts), *taken[:-1]]
    return [
        PositionCounts(position=place, reached=before, accepted=now)
        for place, (before, now) in enumerate(zip(reached, taken, strict=False), 1)
        if before
    ]


def gamma_of(served: Sequence[ServedPrompt], asked: int | None, name: str) -> int | None:
    """The draft tokens of a pass: as given, if the counts do not contradict it, or as counted if all are alike.

    Near the end of a completion passes may draft fewer, at least one fewer each.
    Raises UserError if a larger γ is counted than given.
    """
    known = [(one["drafted"], counts) for one in served if (counts := one["drafted"].counts) is not None]
    drafted = sum(counts.drafted for _, counts in known)
    if not drafted:
        return asked
    at_most = sum(one["drafted"].tokens - one["drafted"].counts.accepted + 1 for one in served if one["drafted"].counts)
    passes = sum(counts.passes or 0 for _, counts in known) or at_most
    mean = drafted / passes
    if asked is not None and mean > asked + 1e-9:
        raise UserError(f"{name}: drafts {mean:.3g} tokens per pass by its counts, and gamma={asked} was given")
    if asked is not None or passes == at_most:
        return asked
    likely = math.ceil(mean - 1e-9)
    return likely if drafted >= passes * likely - len(served) * likely * (likely + 1) // 2 else None


def summary_of(
    config: ServerConfig,
    load: Load,
    prompts: Sequence[PromptRecord],
    verdict: Verdict,
    found: Counted,
    gamma: int | None,
    engine: str,
    model: str,
    sent: str,
    surroundings: Environment,
    device: str | None = None,
) -> ServedSummary:
    """The columns of a record; `device`: of servers that were started here."""
    served = [prompt["served"] for prompt in prompts]
    drafted = [one["drafted"] for one in served]
    plain = [one["plain"] for one in served if one["plain"] is not None]
    paired = len(plain) == len(served)
    timed = paired and not verdict.faulty
    groups = [one["block"] for one in served] if load.in_blocks else None
    decode = _speedup([_decoding(one, load) for one in served], groups) if timed else NONE
    whole = _speedup([_whole(one, load) for one in served], groups) if timed else NONE
    sampling, task = config.sampling, config.task
    requested: int | str = gamma if gamma is not None else "server"
    # Passes of a draft are uneven by themselves: some have no draft tokens.
    steps = plain or (drafted if config.label == WITHOUT else [])
    signs = contention(steps, load, decode, found.tokens_per_pass) if _are_here(config) else []
    summary: ServedSummary = {
        "served": True,
        "target": name_of(config.target) if config.names_target else model,
        "draft": config.draft_name,
        "task": task_label(task.name, task.path),
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "gamma": gamma,
        "gamma_requested": requested,
        "accept": "exact",
        "batch": load.batch,
        "rate": load.rate,
        "prompts": len(prompts),
        "tokens": sum(one.tokens for one in (plain if paired else drafted)),
        "passes": found.passes,
        "alpha": found.alpha,
        "alpha_low": found.low,
        "alpha_high": found.high,
        "alpha_method": found.method,
        "drafted": found.drafted,
        "accepted": found.accepted,
        "rejected": None if found.drafted is None or found.accepted is None else found.drafted - found.accepted,
        "accepted_per_drafted": found.accepted / found.drafted
        if found.drafted and found.accepted is not None
        else None,
        "tokens_per_pass": found.tokens_per_pass,
        "drafted_per_pass": found.drafted_per_pass,
        "acceptance_by_position": list(found.by_position),
        "counted_by": found.source,
        "speedup_measured": _value(decode),
        "speedup_low": decode.low,
        "speedup_high": decode.high,
        "speedup_end_to_end": _value(whole),
        "speedup_end_to_end_low": whole.low,
        "speedup_end_to_end_high": whole.high,
        "ttft_s": _mean(first_seconds(drafted)),
        "ttft_s_baseline": _mean(first_seconds(plain)),
        "ttft_p90_s": _quantile(first_seconds(drafted)),
        "ttft_p90_s_baseline": _quantile(first_seconds(plain)),
        "tpot_s": _per_token(drafted),
        "tpot_s_baseline": _per_token(plain),
        "tokens_per_second": _rate(drafted, [one["wall_s"] for one in served]),
        "tokens_per_second_baseline": _rate(plain, [one["plain_wall_s"] or 0.0 for one in served]),
        "late_s": max(one.late_s for one in (*drafted, *plain)) if load.rate is not None else None,
        "identical": verdict.identical,
        "verdict": verdict.name,
        "verdict_reason": verdict.reason,
        "verified": verdict.verified,
        "lossless": not verdict.faulty,
        "lossy": False,
        "engine": engine,
        "flags": config.flags,
        "sent": sent,
        "streamed": bool(first_seconds(drafted)),
        "speedup_predicted": None,
        "speedup_calibrated": None,
        "prediction": None,
        "c": None,
        "verify_cost": None,
        "device": "server",
        "dtype": "server",
        "hardware": hardware_of(config, surroundings, device),
        "simulated": False,
        "disturbed": bool(signs),
        "disturbed_by": "; ".join(signs) or None,
        "processes": 1,
        "created": time_stamp(),
    }
    if (processing := config.sampling.processing()) is not None:
        summary["processing"] = processing
    tests = None if verdict.certificate is None else verdict.certificate.tests
    if tests is not None:
        summary["proof_z"], summary["proof_power"] = tests.get("proof_z"), tests.get("proof_power")
        summary["proof_tokens"] = tests.get("proof_tokens")
    return summary


def hardware_of(config: ServerConfig, surroundings: Environment, device: str | None) -> str:
    """What the server computes on; of one that others started here, each of what this machine has."""
    if urlsplit(config.url).hostname not in HERE:
        return "remote"
    if device is not None:
        return hardware(surroundings, device)
    return " or ".join([*dict.fromkeys(surroundings["gpus"]), hardware(surroundings, "cpu")])


def _are_here(config: ServerConfig) -> bool:
    """Whether all servers are on this machine, so that its other work is theirs."""
    return all(urlsplit(url).hostname in HERE for url in (config.url, config.plain) if url is not None)


def contention(given: Sequence[Answer], load: Load, speedup: Interval, tokens: float | None) -> list[str]:
    """The signs, in words, that this machine did other work.

    The signs are uneven pieces of the streams `given`, which have one token each, and slow pieces without which a
    speedup whose interval lies above `tokens`, the tokens per pass, would not. They need one request at a time: several
    requests shift each other's pieces.
    """
    if load.in_blocks:
        return []
    streams = [one.arrivals for one in given if len(one.arrivals) >= SINGLY * one.tokens]
    steps_s = [[after - before for before, after in pairwise(one)][1:] for one in streams]
    return of_steps(None, steps_s).signs + _slow_steps(list(chain(*steps_s)), speedup, tokens)


def _slow_steps(steps_s: Sequence[float], speedup: Interval, tokens: float | None) -> list[str]:
    """The sign that a few slow steps without a draft made a speedup above the tokens of a pass, in words.

    If the usual step also gives such a speedup, a pass takes less time than it: v is below 1, or the two servers
    have other settings, and neither is seen from outside.
    """
    if speedup.low is None or tokens is None or not steps_s or not np.mean(steps_s):
        return []
    usual = float(np.median(steps_s) / np.mean(steps_s))
    most = tokens * (1 + SLACK)
    if speedup.low <= most or speedup.low * usual > most:
        return []
    return [
        f"a speedup of {speedup.value:.2f} with {tokens:.2f} tokens per pass is of slow steps without a draft: the "
        f"usual step gives {speedup.value * usual:.2f}"
    ]


def first_seconds(answers: Sequence[Answer]) -> list[float]:
    """Seconds to the first text, of the streamed answers."""
    return [one.first_s for one in answers if one.first_s is not None]


def _value(one: Interval) -> float | None:
    return None if math.isnan(one.value) else one.value


def _speedup(columns: Sequence[tuple[float, int, float, int]], groups: Sequence[int] | None) -> Interval:
    """Ratio of the times per token without and with a draft; NONE if no token was timed."""
    totals = np.sum(columns, axis=0)
    return over_rows(columns, ratio_of_ratios, groups=groups) if (totals > 0).all() else NONE


def _decoding(one: ServedPrompt, load: Load) -> tuple[float, int, float, int]:
    """Seconds and tokens after the first, of both sides; of the whole block for several requests at once."""
    plain, drafted = one["plain"], one["drafted"]
    assert plain is not None
    if load.batch > 1 or plain.first_s is None or drafted.first_s is None:
        return _whole(one, load)
    return (
        plain.seconds - plain.first_s, plain.tokens - plain.first_tokens,
        drafted.seconds - drafted.first_s, drafted.tokens - drafted.first_tokens,
    )  # fmt: skip


def _whole(one: ServedPrompt, load: Load) -> tuple[float, int, float, int]:
    plain, drafted = one["plain"], one["drafted"]
    assert plain is not None
    if load.batch > 1:
        return one["plain_wall_s"] or 0.0, plain.tokens, one["wall_s"], drafted.tokens
    return plain.seconds, plain.tokens, drafted.seconds, drafted.tokens


def _per_token(answers: Sequence[Answer]) -> float | None:
    """Mean seconds of a token after the first; for whole answers of any token."""
    seconds = sum(one.seconds - (one.first_s or 0.0) for one in answers)
    tokens = sum(one.tokens - (one.first_tokens if one.first_s is not None else 0) for one in answers)
    return seconds / tokens if tokens > 0 else None


def _rate(answers: Sequence[Answer], seconds: Sequence[float]) -> float | None:
    return sum(one.tokens for one in answers) / sum(seconds) if sum(seconds) else None


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _quantile(values: Sequence[float]) -> float | None:
    return float(np.quantile(values, 0.9)) if values else None
