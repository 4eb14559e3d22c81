"""An engine that is timed from outside, by three functions: a step, a verification of n tokens, a whole text.

`analysis.costs.costs` makes c, v and overhead from rounds of timed steps and passes; a prediction is compared with
whole completions, decoded in turn. As in `analysis.costs.probe`, places are spread over the texts, each round has an
order of its own, and first steps are timed at the beginning of texts.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from specbench.analysis.costs.probe import STEPS, WrittenText, start_of
from specbench.bench.timing import Decoder, in_turn, times_faster
from specbench.engine.session import Prompt
from specbench.records.timed_rounds import Key, Round, Timed
from specbench.stats import Interval


@dataclass(frozen=True)
class Generated:
    """A completion by an engine: its tokens, its seconds from call to end, and its text in any comparable form."""

    tokens: int
    seconds: float
    text: Hashable


class Engine(Protocol):
    """A target with one draft, as some engine runs them. Times are seconds, on one clock, with all work done."""

    name: str  # with its version
    must_be_equal: bool  # whether a changed completion rules out a speedup: rounding is not told apart

    def time_steps(self, begun: Prompt, tokens: int) -> list[float]:
        """Decode up to `tokens` tokens after `begun` without a draft; the seconds of each step.

        The first begins with the call: it includes the encoder, the prefill and all that is done once per text, also at
        its end.
        """
        ...

    def time_verifications(self, begun: Prompt, gamma: int, tokens: int) -> list[Timed]:
        """Decode up to `tokens` tokens after `begun` with `gamma` drafted tokens per pass; the parts of each pass.

        `draft_s` is all that drafting takes, `verify_s` the target's run over the drafted tokens and one more,
        `accept_s` the rest of the pass. The first begins with the call, as a first step does. An engine that cannot
        watch its own passes returns one, with what it can time of the parts.
        """
        ...

    def generate(self, prompt: Prompt, gamma: int | None, seed: int) -> Generated:
        """The whole text after `prompt`, with `gamma` drafted tokens per pass, or without a draft (None)."""
        ...


PASSES = 5  # at each place; cold weights matter little beside the time of its calls
TEXTS = 4  # of a round: texts of a few passes are short, and calls are cheap
REPEATS = 3  # of each whole text; the median, so that one hiccup of the machine does not count
PLAIN: Key = ("", 0)  # decoding without a draft


def time_engine(
    engines: Mapping[str, Engine],
    gammas: Sequence[int],
    texts: Sequence[WrittenText],
    max_new_tokens: int,
    rounds: int,
    seed: int = 0,
) -> list[Round]:
    """`rounds` rounds over `texts` after an untimed round, each at `TEXTS` places; `engines` by their candidates."""
    _round(engines, gammas, texts[:1], max_new_tokens, -1, seed)
    found = []
    for number in range(rounds):
        places = range(number * TEXTS, (number + 1) * TEXTS)
        spread = [texts[place * len(texts) // (rounds * TEXTS)] for place in places]
        found.append(_round(engines, gammas, spread, max_new_tokens, number, seed))
    return found


def _round(
    engines: Mapping[str, Engine],
    gammas: Sequence[int],
    texts: Sequence[WrittenText],
    max_new_tokens: int,
    number: int,
    seed: int,
) -> Round:
    this = Round.of({(name, gamma): () for name in engines for gamma in gammas})
    timed = this.by_key
    plain = next(iter(engines.values()))
    jobs: list[Key | None] = [None, *timed]
    generator = np.random.default_rng([seed, number + 1])
    for place, (prompt, written) in enumerate(texts):
        for job in generator.permutation(len(jobs)):
            if (key := jobs[job]) is None:
                most = min(STEPS, max_new_tokens)
                begun = _begun(prompt, written, most, number * TEXTS + place)
                steps = plain.time_steps(prompt, most if begun is None else 1)
                this.first_steps_s.extend(steps[:1])
                this.steps_s.extend(steps[1:] if begun is None else plain.time_steps(begun, most)[1:])
                continue
            name, gamma = key
            most = min(PASSES * (gamma + 1), max_new_tokens)
            begun = _begun(prompt, written, most, number * TEXTS + place)
            engine = engines[name]
            passes = engine.time_verifications(prompt, gamma, most if begun is None else min(gamma + 1, most))
            if begun is not None:
                passes = passes[:1] + [one for one in engine.time_verifications(begun, gamma, most) if not one.first]
            timed[key].extend(passes)
    return this


def _begun(prompt: Prompt, written: Sequence[int], most: int, number: int) -> Prompt | None:
    """The text so far at the place of this number, with about `most` tokens to come; None for its beginning."""
    start = start_of(len(written), most, number)
    return Prompt(prompt.source, (*prompt.prefix, *written[:start])) if start else None


@dataclass(frozen=True)
class Proof:
    """A candidate's completions against those without a draft: the speedup per token, and the share that are equal.

    `speedup` is None if a draft changed the completions: at T = 0 they must be equal if an engine says so
    (`Engine.must_be_equal`).
    """

    speedup: Interval | None
    equal_share: float


def prove(
    engines: Mapping[str, Engine], keys: Sequence[Key], prompts: Sequence[Prompt], seed: int = 0
) -> dict[Key, Proof]:
    """The measured speedup of each (candidate, gamma), all and decoding without a draft in turn on each prompt."""
    plain = next(iter(engines.values()))
    texts: dict[Key, list[object]] = {}

    def decoder(key: Key, engine: Engine, gamma: int | None) -> Decoder:
        def decode(index: int) -> tuple[float, list[int]]:
            found = engine.generate(prompts[index], gamma, seed + index)
            texts.setdefault(key, [None] * len(prompts))[index] = found.text
            return found.seconds, [0] * found.tokens

        return decode

    decoders = {PLAIN: decoder(PLAIN, plain, None)} | {key: decoder(key, engines[key[0]], key[1]) for key in keys}
    timings = in_turn(decoders, len(prompts), REPEATS)
    proofs = dict[Key, Proof]()
    for key in keys:
        equal = sum(a == b for a, b in zip(texts[PLAIN], texts[key], strict=True)) / len(prompts)
        has_speedup = equal == 1 or not engines[key[0]].must_be_equal
        proofs[key] = Proof(times_faster(timings[PLAIN], timings[key]) if has_speedup else None, equal)
    return proofs
