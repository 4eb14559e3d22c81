"""What a pass costs with each draft and gamma, in steps of the target: c, v(gamma) and overhead, from short probes.

A probe is a handful of real passes of the real loop, begun inside texts that the target wrote, at places spread over
their length, so that caches are as long as in a run and the engine is the one that a run uses. Every round visits
each draft in turn, the baseline first and then every gamma, and is divided by its own target step, so that a machine
that slows down slows all of them. Medians are taken over passes and over rounds; an interval resamples rounds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from specbench.acceptance import AcceptanceRule, accept_exact
from specbench.decoding import Pass, autoregressive, speculative
from specbench.drafts import Draft
from specbench.models import Model, Prompt
from specbench.sampling import Sampling

Text = tuple[Prompt, Sequence[int]]  # a prompt and what the target wrote
STEPS = 16  # baseline steps of a round
PASSES = 5  # about so many passes of each (draft, gamma) a round
GOLDEN = 0.618034  # multiples of it spread evenly over 0 ... 1


@dataclass(frozen=True)
class Round:
    """Seconds from one place of one text: baseline steps, and the passes of each (draft, gamma)."""

    steps_s: list[float]
    passes: dict[tuple[str, int], list[Pass]]
    asked: dict[tuple[str, int], list[int]] = field(default_factory=dict)  # tokens each pass was asked to draft


@dataclass(frozen=True)
class Cost:
    """In target steps: drafting one token (c), checking gamma+1 positions (v), and accepting (overhead)."""

    c: float
    verify_cost: float
    overhead: float
    passes: int  # how many were timed

    def of_pass(self, gamma: float) -> float:
        return gamma * self.c + self.verify_cost + self.overhead


def probe(
    target: Model,
    drafts: Mapping[str, Draft],
    gammas: Sequence[int],
    texts: Sequence[Text],
    sampling: Sampling,
    *,
    max_new_tokens: int,
    rounds: int,
    seed: int = 0,
    accept: AcceptanceRule = accept_exact,
    compared: Sampling | None = None,
) -> list[Round]:
    """`rounds` rounds over `texts`, checked by the rule `accept`. One more goes before them unheard:
    what is made at a first call is not the cost."""
    found = []
    for number in range(-1, rounds):
        prompt, written = texts[number % len(texts)]

        def begun(
            tokens: int, prompt: Prompt = prompt, written: Sequence[int] = written, number: int = number
        ) -> Prompt:
            """The prompt and the text so far, with `tokens` still to come."""
            return Prompt(prompt.source, (*prompt.prefix, *written[: _start(len(written), tokens, number)]))

        def behind(tokens: int, prompt: Prompt = prompt) -> int:
            """1 to leave out the first pass of a text that was begun before: it may have to read the text so far."""
            return int(len(begun(tokens).prefix) > len(prompt.prefix))

        def generator(number: int = number) -> torch.Generator:
            return torch.Generator(_device(target)).manual_seed(seed + number + 1)

        steps = min(STEPS, max_new_tokens)
        steps_s: list[float] = []
        passes, asked = {}, {}
        for name, draft in drafts.items():
            baseline = autoregressive(
                target, begun(steps), sampling=sampling, max_new_tokens=steps, generator=generator()
            )
            steps_s += baseline.steps_s[behind(steps) :]
            for gamma in gammas:
                most = min(PASSES * (gamma + 1), max_new_tokens)
                trace = speculative(
                    target, draft, begun(most),
                    gamma=gamma, sampling=sampling, max_new_tokens=most, generator=generator(),
                    accept=accept, compared=compared,
                )  # fmt: skip
                passes[name, gamma] = trace.passes[behind(most) :]
                asked[name, gamma] = _asked(trace.passes, gamma, most)[behind(most) :]
        if number < 0:
            _visit_lengths(target, gammas, texts, rounds, max_new_tokens)
        else:
            found.append(Round(steps_s, passes, asked))
    return found


def _start(length: int, tokens: int, number: int) -> int:
    """Where round `number` begins in a text of `length` tokens, so that about `tokens` are still to come."""
    return int(max(0, length - tokens) * (number * GOLDEN % 1))


def _visit_lengths(
    target: Model, gammas: Sequence[int], texts: Sequence[Text], rounds: int, max_new_tokens: int
) -> None:
    """Check gamma + 1 positions once at every length that the rounds will pass. Engines keep what depends on lengths
    alone; a run has soon been everywhere, and a few probes would pay for it at every step."""
    prompt, written = max(texts, key=lambda text: len(text[1]))
    tokens = [*prompt.prefix, *written]
    session = target.start(prompt)
    for gamma in gammas:
        most = min(PASSES * (gamma + 1), max_new_tokens)
        starts = [_start(len(texts[number % len(texts)][1]), most, number) for number in range(rounds)]
        lengths = {start + more for start in starts for more in range(most + 1)}
        session.extend(tokens[session.length :])
        for length in sorted(lengths, reverse=True):
            place = len(prompt.prefix) - 1 + length
            if place < len(tokens) and place + gamma < (target.longest or math.inf):
                session.rollback(place)
                session.extend((tokens[place:] * (gamma + 1))[: gamma + 1])
        session.rollback(len(prompt.prefix) - 1)


def _asked(passes: Sequence[Pass], gamma: int, most: int) -> list[int]:
    """What each pass was asked for: gamma, or what room was left."""
    written = [0, *accumulate(a_pass.emitted for a_pass in passes)]
    return [min(gamma, most - before - 1) for before in written[:-1]]


def _device(target: Model) -> torch.device:
    device: torch.device = getattr(target, "device", torch.device("cpu"))
    return device


class Costs:
    """The cost of each (draft, gamma) of which full passes were seen, round by round."""

    def __init__(self, rounds: Sequence[Round]) -> None:
        self.rounds = rounds
        self.keys = list(rounds[0].passes)
        # Each round is divided by its own target step, so that a machine that slows down between rounds cancels.
        self.ratios_RK3 = np.array([[_ratios(one, key) for key in self.keys] for one in rounds])
        self.seen_RK = np.array([[len(_full(one, key)) for key in self.keys] for one in rounds])

    def table(self, rounds: Sequence[int] | NDArray[np.int64] | None = None) -> dict[tuple[str, int], Cost]:
        """Medians over `rounds` (their numbers, some perhaps more than once), or over all."""
        picked = np.arange(len(self.ratios_RK3)) if rounds is None else np.asarray(rounds)
        found = {}
        for place, key in enumerate(self.keys):
            ratios_R3 = self.ratios_RK3[picked, place]
            ratios_R3 = ratios_R3[~np.isnan(ratios_R3[:, 0])]
            if len(ratios_R3):
                c, verify_cost, overhead = np.median(ratios_R3, axis=0).tolist()
                found[key] = Cost(c, verify_cost, overhead, int(self.seen_RK[picked, place].sum()))
        return found

    def stops(self, draft: str) -> float | None:
        """The chance, at each token drafted from a rejected one on, that the draft ended its proposal there. None if no
        proposal was ever shorter than asked for."""
        told = [
            (a_pass, asked)
            for one in self.rounds
            for key, many in one.asked.items()
            if key[0] == draft
            for a_pass, asked in zip(one.passes[key], many, strict=True)
        ]
        if not any(0 < a_pass.drafted < asked for a_pass, asked in told):
            return None
        behind = [(a_pass, asked) for a_pass, asked in told if a_pass.accepted < a_pass.drafted]
        tokens = sum(a_pass.drafted - a_pass.accepted for a_pass, _ in behind)
        return sum(a_pass.drafted < asked for a_pass, asked in behind) / tokens if tokens else 0.0


def _full(one: Round, key: tuple[str, int]) -> list[Pass]:
    return [a_pass for a_pass in one.passes[key] if a_pass.drafted == key[1]]


def _ratios(one: Round, key: tuple[str, int]) -> tuple[float, float, float]:
    """c, v and overhead of one round; NaN where it saw no full pass."""
    full = _full(one, key)
    if not full or not one.steps_s:
        return (np.nan, np.nan, np.nan)
    step_s = float(np.median(one.steps_s))
    times = [(a_pass.draft_s / a_pass.drafted, a_pass.verify_s, a_pass.accept_s) for a_pass in full]
    drafting, checking, accepting = np.median(times, axis=0) / step_s
    return (drafting, checking, accepting)


def step_seconds(rounds: Sequence[Round]) -> float:
    """The median target step."""
    return float(np.median([step for one in rounds for step in one.steps_s]))
