"""Decode every prompt with every candidate, interleaved with rounds of timed passes, and compare completions."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from specbench.algorithm.decoding.alone import autoregressive, speculative
from specbench.algorithm.decoding.spec import Trace
from specbench.algorithm.gamma import Constant, Gamma
from specbench.analysis.costs.probe import Round, already_collected
from specbench.analysis.proof.departures import difference
from specbench.choose.alpha import Scored
from specbench.choose.candidates import LoadedCandidate
from specbench.choose.passes import time_passes
from specbench.experiment.measure import generator_for, prove_greedily
from specbench.experiment.runner import Progress
from specbench.records.documents import DecodedRecord

WARMUP = 2  # prompts that every candidate decodes untimed
Name = tuple[str, int | str]  # the candidate, and gamma or the policy; the baseline is BASELINE
BASELINE: Name = ("", 0)
Decode = Callable[[int], Trace]


@dataclass
class Decoded:
    """What one candidate decoded of each prompt, over all repeats: seconds and tokens.

    Of the first repeat also the accepted and the tested draft tokens.
    """

    decode_s: list[float]
    start_s: list[float]
    tokens: list[int]
    accepted: list[int]
    tested: list[int]
    texts: list[list[int]] = field(default_factory=list)

    @classmethod
    def of(cls, prompts: int) -> "Decoded":
        return cls([0.0] * prompts, [0.0] * prompts, [0] * prompts, [0] * prompts, [0] * prompts)

    def add(self, index: int, trace: Trace, first: bool) -> None:
        self.decode_s[index] += trace.decode_s
        self.start_s[index] += trace.start_s
        self.tokens[index] += len(trace.tokens)
        if first:
            self.texts.append(trace.tokens)
            self.accepted[index] += sum(p.accepted for p in trace.passes)
            # A token drafted after an accepted end of sequence was not tested.
            self.tested[index] += sum(min(p.emitted, p.drafted) for p in trace.passes)

    def to_json(self, name: Name) -> DecodedRecord:
        """Everything except the completions, by candidate and gamma."""
        return {
            "candidate": name[0], "gamma": name[1], "decode_s": self.decode_s, "start_s": self.start_s,
            "tokens": self.tokens, "accepted": self.accepted, "judged": self.tested,
        }  # fmt: skip


def all_decoders(scored: Scored, policies: dict[str, dict[str, Gamma]]) -> dict[Name, Decode]:
    """The baseline, every candidate at every gamma, and its policies: each decodes the prompt of a number."""
    config = scored.config

    def baseline(index: int) -> Trace:
        parts = scored.candidates[0].parts
        generator = generator_for(config.seed, index, "baseline", parts.device)
        return autoregressive(parts.target, parts.prompts[index], parts.spec, generator)

    def decoding(candidate: LoadedCandidate, gamma: Gamma) -> Decode:
        parts = candidate.parts
        spec = replace(parts.spec, gamma=gamma)

        def decode(index: int) -> Trace:
            generator = generator_for(config.seed, index, "speculative", parts.device)
            return speculative(parts.target, parts.draft, parts.prompts[index], spec, generator)

        return decode

    decoders: dict[Name, Decode] = {BASELINE: baseline}
    for candidate in scored.candidates:
        fixed: dict[int | str, Gamma] = {gamma: Constant(gamma) for gamma in sorted(set(config.gammas))}
        for gamma, chosen in (fixed | dict(policies[candidate.name])).items():
            decoders[candidate.name, gamma] = decoding(candidate, chosen)
    return decoders


def interleave(
    scored: Scored, decoders: dict[Name, Decode], progress: Progress
) -> tuple[dict[Name, Decoded], list[Round]]:
    """Run every decoder on every prompt, `repeats` times, with rounds of timed passes spread between.

    Each repeat has another order, because neighbours change the time by a few percent.
    """
    config, prompts = scored.config, len(scored.sample.texts)
    names = list(decoders)
    rounds: list[Round] = []
    for index in range(min(WARMUP, prompts)):
        for decode in decoders.values():
            decode(index)
    decoded = {name: Decoded.of(prompts) for name in names}
    with already_collected():
        for number in range(total := config.repeats * prompts):
            index = number % prompts
            while len(rounds) < -(-(number + 1) * config.rounds // total):
                rounds += time_passes(scored, len(rounds), 1)
            for place in np.random.default_rng([config.seed, number]).permutation(len(names)):
                decoded[names[place]].add(index, decoders[names[place]](index), first=number < prompts)
            progress.advance(number + 1, total)
    return decoded, rounds


def prove(scored: Scored) -> None:
    """At T > 0, check the lossless candidates at T = 0 first, as a run does. Raises MachineError."""
    if scored.config.sampling.temperature > 0:
        for candidate in scored.candidates:
            if candidate.lossy is None:
                spec = replace(candidate.parts.spec, gamma=Constant(max(candidate.config.gammas)))
                prove_greedily(replace(candidate.parts, spec=spec))


def not_lossless(scored: Scored, decoded: dict[Name, Decoded]) -> set[Name]:
    """The candidates that should be lossless and wrote, at T = 0, a completion that rounding does not explain."""
    if scored.config.sampling.temperature > 0:
        return set()
    own = decoded[BASELINE].texts
    found = set()
    for candidate in scored.candidates:
        parts = candidate.parts
        for name, one in decoded.items():
            if name[0] != candidate.name or candidate.lossy is not None:
                continue
            for prompt, right, text in zip(parts.prompts, own, one.texts, strict=False):
                differing = difference(parts.target, prompt, right, text, parts.spec.max_new_tokens)
                if differing is not None and (parts.invariant or not differing.is_rounding):
                    found.add(name)
    return found


def same_texts(scored: Scored, decoded: dict[Name, Decoded]) -> float | None:
    """The share of completions of lossless candidates that equal the target's; None at T > 0."""
    if scored.config.sampling.temperature > 0:
        return None
    lossless = {candidate.name for candidate in scored.candidates if candidate.lossy is None}
    own = decoded[BASELINE].texts
    theirs = [one.texts for (name, _), one in decoded.items() if name in lossless]
    same = [a == b for texts in theirs for a, b in zip(own, texts, strict=True)]
    return sum(same) / len(same) if same else None
