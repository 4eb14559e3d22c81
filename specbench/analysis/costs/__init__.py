"""Costs: c, v and the time of passes; here the cost of a run's passes, in time and in operations, over all passes.

A pass that drafted less than gamma is cheaper than a full pass, so c and v, which are of full passes, do not add up to
the cost of a draft that often proposes nothing.

In a batch the times of a row's steps and passes are walltimes, which it shares with as many rows as `rows` says; its
`decode_s` is its share. Plain numbers only.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specbench.analysis.forecast import walk
from specbench.records.schema import DECODING_MODES, DecodingMode, PassRecord, PromptRecord, Throughput, TraceRecord


def seconds_of(trace: TraceRecord) -> list[float]:
    """Seconds of each step or pass."""
    return trace.get("steps_s") or [one["draft_s"] + one["verify_s"] + one["accept_s"] for one in trace["passes"]]


def rows_of(trace: TraceRecord) -> list[int]:
    """How many rows each step or pass had: 1 without a batch."""
    return trace.get("rows") or [1] * len(seconds_of(trace))


def throughput(prompts: Sequence[PromptRecord], batch: int, wrong: bool) -> Throughput:
    """Of both ways; none of speculative decoding where its completions are `wrong`."""
    alone, ours = _of_way(prompts, "baseline"), _of_way(prompts, "speculative")
    return {
        "batch": batch,
        "occupancy": ours[0],
        "occupancy_baseline": alone[0],
        "tokens_per_second": None if wrong else ours[1],
        "tokens_per_second_baseline": alone[1],
        "latency_s": None if wrong else ours[2],
        "latency_s_baseline": alone[2],
    }


def _of_way(prompts: Sequence[PromptRecord], way: DecodingMode) -> tuple[float, float, float]:
    """Mean rows, tokens a second, seconds a token of a row."""
    traces = [prompt[way] for prompt in prompts]
    tokens = sum(len(trace["tokens"]) for trace in traces)
    rows = [number for trace in traces for number in rows_of(trace)]
    waited_s = sum(sum(seconds_of(trace)) for trace in traces)
    return (
        len(rows) / sum(1 / number for number in rows),
        tokens / sum(t["decode_s"] for t in traces),
        waited_s / tokens,
    )


class ExpectedOfRows(NamedTuple):
    """Expected tokens of a row's pass, and how many it drafts."""

    tokens: float
    drafted: float


def expected_of_rows(prompts: Sequence[PromptRecord], gamma: int, max_new_tokens: int) -> ExpectedOfRows:
    """Of the mean pass over the rows of a batch, each of which has an alpha_b of its own and a completion that ends.

    Where no completion ended this is the mean of Omega(alpha_b) over rows. (Omega of the mean alpha is lower, for Omega
    is convex.) A row counts for as many passes as its completion needs at its alpha_b, estimated by `alphas_of_rows`.
    """
    betas = [prompt["beta"] for prompt in prompts if prompt["beta"]]
    passes_D = np.zeros(gamma + 1)
    for (alpha, length), rows in Counter(zip(alphas_of_rows(betas), map(len, betas), strict=True)).items():
        passes_D += rows * walk([alpha] * length, gamma, max_new_tokens).passes.sum(0)
    passes = float(passes_D.sum())
    return ExpectedOfRows(sum(map(len, betas)) / passes, float(passes_D @ np.arange(gamma + 1)) / passes)


def alphas_of_rows(betas: Sequence[Sequence[float]]) -> list[float]:
    """An alpha for each row, from `betas` of its tokens (at least one), with no more spread than the rows truly have.

    The mean of a short row's betas scatters about its alpha, and the number of passes is convex in alpha, so that the
    raw means give too many passes (5% at alpha .75, gamma 4 and 6 tokens a row). Empirical Bayes: with tau^2 the
    variance of alpha between rows and sigma^2 of beta within them, from the analysis of variance of unequal groups, the
    mean of n tokens scatters by tau^2 + sigma^2 / n. Means are drawn to the pooled alpha by the square root of
    tau^2 / (tau^2 + sigma^2 / n), which leaves their variance at tau^2 (constrained empirical Bayes: Ghosh 1992). The
    posterior mean, without the root, would spread too little and give too few passes.
    """
    counts = np.array([len(beta) for beta in betas], float)
    means = np.array([sum(beta) / len(beta) for beta in betas])
    tokens, rows = float(counts.sum()), len(betas)
    if not rows:
        return []
    if rows < 2 or tokens == rows:  # without two rows no spread between them, without two tokens none within
        return [float(counts @ means) / tokens] * rows
    pooled = float(counts @ means) / tokens
    within = sum(sum((one - mean) ** 2 for one in beta) for beta, mean in zip(betas, means, strict=True))
    sigma2 = float(within) / (tokens - rows)
    between = float(counts @ (means - pooled) ** 2) / (rows - 1)
    tau2 = max(0.0, (between - sigma2) * (rows - 1) / (tokens - float(counts @ counts) / tokens))
    if tau2 == 0:
        return [pooled] * rows
    shrunk = pooled + np.sqrt(tau2 / (tau2 + sigma2 / counts)) * (means - pooled)
    return [float(alpha) for alpha in np.clip(shrunk, 0.0, 1.0)]


@dataclass(frozen=True)
class PassCosts:
    """Mean times of a pass, in mean target steps.

    Tokens per pass over the sum of the three is the measured speedup.
    """

    drafting: float
    checking: float
    accepting: float

    @property
    def total(self) -> float:
        return self.drafting + self.checking + self.accepting


def pass_costs(prompts: Sequence[PromptRecord]) -> PassCosts:
    """The mean pass over the mean step of the baseline, over all prompts of a run; in a batch of a row's share."""
    alone, ours = ([prompt[way] for prompt in prompts] for way in DECODING_MODES)
    steps_s = [s / rows for trace in alone for s, rows in zip(trace["steps_s"], rows_of(trace), strict=True)]
    passes = [(one, rows) for trace in ours for one, rows in zip(trace["passes"], rows_of(trace), strict=True)]
    step_s = sum(steps_s) / len(steps_s)
    drafting = sum(a_pass["draft_s"] / rows for a_pass, rows in passes) / len(passes)
    checking = sum(a_pass["verify_s"] / rows for a_pass, rows in passes) / len(passes)
    accepting = sum(a_pass["accept_s"] / rows for a_pass, rows in passes) / len(passes)
    return PassCosts(drafting / step_s, checking / step_s, accepting / step_s)


def operations(passes: Sequence[PassRecord], c_hat: float) -> tuple[float, int]:
    """Arithmetic operations of these passes in target steps, and the tokens that they emitted (Definition 3.10).

    A pass runs M_p on its drafted tokens and one more, and M_q on each drafted token.
    """
    spent = sum(a_pass["drafted"] * (1 + c_hat) + 1 for a_pass in passes)
    return spent, sum(a_pass["emitted"] for a_pass in passes)
