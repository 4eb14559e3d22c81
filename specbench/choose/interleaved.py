"""Every way of decoding on every prompt, in turn, with rounds of timed passes between; and whether what came out is the
target's own text."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from specbench.choose.alpha import Scored
from specbench.choose.candidates import Entry
from specbench.choose.recommend import time_passes
from specbench.decoding import Trace, autoregressive, speculative
from specbench.gamma import Constant, Gamma
from specbench.measure.lossless import first_difference
from specbench.measure.probe import Round
from specbench.run import Progress
from specbench.run.measure_prompt import generator_for, prove_greedily, sampling_of

WARMUP = 2  # prompts that every way decodes before the clock starts
Name = tuple[str, int | str]  # the way, and gamma or the policy; the baseline is BASELINE
BASELINE: Name = ("", 0)
Decode = Callable[[int], Trace]


@dataclass
class Decoded:
    """What one way did with each prompt, over all repeats: seconds, tokens, and of the first repeat how many drafted
    tokens were accepted of how many that were judged."""

    decode_s: list[float]
    start_s: list[float]
    tokens: list[int]
    accepted: list[int]
    judged: list[int]
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
            # Not what was drafted behind the end of the text: nothing was rejected before it.
            self.judged[index] += sum(min(p.emitted, p.drafted) for p in trace.passes)

    def plain(self) -> dict[str, Any]:
        """All but the texts."""
        values = asdict(self)
        del values["texts"]
        return values


def all_ways(scored: Scored, policies: dict[str, dict[str, Gamma]]) -> dict[Name, Decode]:
    """The baseline, every way at every gamma, and its policies: prompt number to trace."""
    config, sampling = scored.config, sampling_of(scored.config)

    def baseline(index: int) -> Trace:
        parts = scored.entries[0].parts
        return autoregressive(
            parts.target, parts.prompts[index], sampling=sampling, max_new_tokens=config.max_new_tokens,
            generator=generator_for(config.seed, index, "baseline", parts.device),
        )  # fmt: skip

    def decoding(entry: Entry, gamma: Gamma) -> Decode:
        def decode(index: int) -> Trace:
            parts, picked = entry.parts, entry.picked
            return speculative(
                parts.target, parts.draft, parts.prompts[index],
                gamma=gamma, sampling=sampling, max_new_tokens=config.max_new_tokens,
                generator=generator_for(config.seed, index, "speculative", parts.device),
                accept=picked.accept, compared=picked.compared,
            )  # fmt: skip

        return decode

    found: dict[Name, Decode] = {BASELINE: baseline}
    for entry in scored.entries:
        fixed: dict[int | str, Gamma] = {gamma: Constant(gamma) for gamma in sorted(set(config.gammas))}
        for gamma, chosen in (fixed | dict(policies[entry.name])).items():
            found[entry.name, gamma] = decoding(entry, chosen)
    return found


def in_turn(scored: Scored, ways: dict[Name, Decode], progress: Progress) -> tuple[dict[Name, Decoded], list[Round]]:
    """Every way on every prompt, `repeats` times, each time in another order (neighbours are worth a few percent), with
    rounds of timed passes spread between."""
    config, prompts = scored.config, len(scored.sample.texts)
    names = list(ways)
    rounds: list[Round] = []
    for index in range(min(WARMUP, prompts)):
        for decode in ways.values():
            decode(index)
    decoded = {name: Decoded.of(prompts) for name in names}
    for number in range(total := config.repeats * prompts):
        index = number % prompts
        while len(rounds) < -(-(number + 1) * config.rounds // total):
            rounds += time_passes(scored, len(rounds), 1)
        for place in np.random.default_rng([config.seed, number]).permutation(len(names)):
            decoded[names[place]].add(index, ways[names[place]](index), first=number < prompts)
        progress.advance(number + 1, total)
    return decoded, rounds


def prove(scored: Scored) -> None:
    """Where texts will be sampled: the lossless ways at T = 0 first, as before a run. Raises MachineError."""
    if sampling_of(scored.config).temperature > 0:
        for entry in scored.entries:
            if entry.lossy is None:
                prove_greedily(entry.config, replace(entry.parts, gamma=Constant(max(entry.config.gammas))))


def not_lossless(scored: Scored, decoded: dict[Name, Decoded]) -> set[Name]:
    """The ways that should be lossless and wrote, at T = 0, a text that rounding does not explain."""
    if sampling_of(scored.config).temperature > 0:
        return set()
    own = decoded[BASELINE].texts
    found = set()
    for entry in scored.entries:
        parts = entry.parts
        for name, one in decoded.items():
            if name[0] != entry.name or entry.lossy is not None:
                continue
            for prompt, right, text in zip(parts.prompts, own, one.texts, strict=False):
                difference = first_difference(parts.target, prompt, right, text)
                if difference is not None and not difference.is_rounding:
                    found.add(name)
    return found


def same_texts(scored: Scored, decoded: dict[Name, Decoded]) -> float | None:
    """The share of texts of lossless ways that are the target's own; at T > 0 there is nothing to compare."""
    if scored.config.sampling.temperature > 0:
        return None
    lossless = {entry.name for entry in scored.entries if entry.lossy is None}
    own = decoded[BASELINE].texts
    same = [a == b for (way, _), one in decoded.items() if way in lossless for a, b in zip(own, one.texts, strict=True)]
    return sum(same) / len(same) if same else None
