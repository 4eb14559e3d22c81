"""Sums over a sampled completion for the tests of `analysis.proof`, by one reading of target and draft.

Distributions are made `CHUNK` positions at a time and dropped.

A token of probability 0 under p (top-k, top-p) was not drawn from p. In bf16 a pass over gamma + 1 tokens rounds
differently from the reading, so that a token at the edge of the top k can be inside for one and outside for the other.
As at T = 0 (`analysis.proof.departures`) the position is then computed in two ways, and rounding explains the token if
logits moved by that noise include it. It counts with the lowest probability of p.

Shapes: L positions of a chunk, V tokens of the vocabulary.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specbench.algorithm.draft import Draft
from specbench.analysis.acceptance.agreement import logits_along
from specbench.analysis.proof.departures import NOISE_FACTOR, read_by_step
from specbench.engine.session import Model, Prompt
from specbench.records.prompt_sums import Evidence, Sums
from specbench.sampling import NOT_FINITE, Sampling, standardise


def evidence(
    target: Model,
    draft: Draft,
    prompt: Prompt,
    written: Sequence[int],
    sampling: Sampling,
    drafting: Sampling | None = None,
    noise: float = 0.0,
    seen: Callable[[Tensor, Tensor], None] | None = None,
) -> Evidence:
    """The sums of the proof along `written`.

    Args:
        target: the target.
        draft: the draft that was used.
        prompt: the prompt.
        written: the completion, sampled (T > 0) by speculative decoding.
        sampling: of the target.
        drafting: the sampling of the draft's tokens; None: the target's.
        noise: how far the logits of who wrote it may lie from the target's, if that is more than measured here.
        seen: is given p and the tokens of each chunk.

    Raises:
        FloatingPointError: a distribution is not finite.
    """
    tokens, first = [*prompt.prefix, *written], len(prompt.prefix)
    session = target.start(prompt)
    proposing = draft.start_on(session, prompt, drafting or sampling)
    found, odd = Evidence(tokens=len(written)), list[int]()
    for start, logits_LV in logits_along(session, tokens, first):
        p_LV = standardise(logits_LV, sampling, target.vocabulary_size)
        stop = start + len(p_LV)
        odd += _add(found, p_LV, proposing.score(tokens[:stop], start), tokens[start:stop], start)
        if seen is not None:
            seen(p_LV, torch.tensor(tokens[start:stop], device=p_LV.device))
    if odd:
        found.outside = sum(not explained for explained in _by_rounding(target, prompt, tokens, odd, sampling, noise))
    return found


def _add(found: Evidence, p_LV: Tensor, q_LV: Tensor, written: Sequence[int], start: int) -> list[int]:
    """Add a chunk; the places of tokens that have no probability."""
    at_L1 = torch.tensor(written, device=p_LV.device).unsqueeze(-1)
    possible_LV = p_LV > 0
    log_LV = torch.where(possible_LV, p_LV, 1.0).log()
    score_LV = log_LV - _mean(p_LV, log_LV)
    lowest_L1 = torch.where(possible_LV, score_LV, torch.inf).amin(-1, keepdim=True)
    inside_L1 = possible_LV.gather(-1, at_L1)
    value_L1 = torch.where(inside_L1, score_LV.gather(-1, at_L1), lowest_L1)
    square_LV = score_LV.square()
    moments = [_mean(p_LV, values) for values in (square_LV, square_LV * score_LV, score_LV.abs())]
    del log_LV, square_LV, score_LV
    place_LV = p_LV.cumsum(-1).sub_(p_LV / 2).sub_(0.5)
    cube_LV = p_LV**3
    # The uniform number has variance 1/12 and third moment 0; within the share p of a token it varies by p^2 / 12.
    spread_L1, lean_L1 = (1 - cube_LV.sum(-1, keepdim=True)) / 12, -(place_LV * cube_LV).sum(-1, keepdim=True) / 4
    order = [place_LV.gather(-1, at_L1), spread_L1, lean_L1]
    del place_LV, cube_LV
    # If p is 0, nothing is accepted; the token was written all the same, at the edge of the support.
    kept_LV = torch.where(possible_LV, q_LV / p_LV, (q_LV > 0).to(p_LV.dtype)).clamp(max=1)
    kept_LV = kept_LV - _mean(p_LV, kept_LV)
    draft = [kept_LV.gather(-1, at_L1), _mean(p_LV, kept_LV**2), _mean(p_LV, kept_LV**3)]
    for row in torch.cat([value_L1, *moments, *order, *draft], -1).tolist():
        value, variance, third, deviation = row[:4]
        if not all(map(math.isfinite, row)):
            raise FloatingPointError(NOT_FINITE)
        found.likelihood.add(value, variance, third)
        found.order.add(*row[4:7])
        found.echo.add(*_echo(found.draft, *row[7:]))
        found.draft.add(*row[7:])
        found.deviation += deviation
    return [start + index for index, inside in enumerate(inside_L1.squeeze(-1).tolist()) if not inside]


def _echo(so_far: Sums, value: float, variance: float, third: float) -> tuple[float, float, float]:
    """A score's value and moments, weighted by the z of what came before in the completion, cut to [-1, 1]."""
    weight = so_far.sum / math.sqrt(so_far.variance) if so_far.variance > 0 else 0.0
    weight = max(-1.0, min(1.0, weight))
    return weight * value, weight**2 * variance, weight**3 * third


def _mean(p_LV: Tensor, values_LV: Tensor) -> Tensor:
    """The mean [L, 1] of values under p, whose sum is 1 except for rounding."""
    return (p_LV * values_LV).sum(-1, keepdim=True) / p_LV.sum(-1, keepdim=True)


def _by_rounding(
    target: Model, prompt: Prompt, tokens: Sequence[int], places: Sequence[int], sampling: Sampling, at_least: float
) -> list[bool]:
    """For each place whether rounding explains that its token has no probability."""
    at_once = target.start(prompt)
    reading = at_once.length
    logits_LV = at_once.extend(list(tokens[reading : places[-1]]))
    rows = {place: logits_LV[place - 1 - reading, : target.vocabulary_size].float().clone() for place in places}
    del logits_LV
    return [
        _within_reach(step_V, tokens[place], NOISE_FACTOR / 2 * max(noise, at_least), sampling)
        for place, step_V, noise in read_by_step(target, prompt, tokens, rows)
    ]


def _within_reach(logits_V: Tensor, token: int, noise: float, sampling: Sampling) -> bool:
    """Whether top-k, top-p and min-p can let `token` in if every logit may move by `noise`."""
    if sampling.min_p is not None:
        lowest = logits_V.max() + sampling.temperature * math.log(sampling.min_p)
        if logits_V[token] + 2 * noise < lowest:
            return False
    sure_V = logits_V > logits_V[token] + 2 * noise  # these come before the token in any case
    count = int(sure_V.sum())
    if sampling.top_k is not None and count >= sampling.top_k:
        return False
    if sampling.top_p is None:
        return sampling.top_k is not None or sampling.min_p is not None
    scaled_V = (logits_V - logits_V.max()) / sampling.temperature
    shift = noise / sampling.temperature
    before = (scaled_V[sure_V] - shift).exp().sum()  # at the least
    others_V = scaled_V[~sure_V]
    if sampling.top_k is not None:
        others_V = others_V.topk(min(sampling.top_k - count, len(others_V))).values
    after = (others_V + shift).exp().sum()  # at the most
    return bool(before / (before + after) < sampling.top_p)
