"""Timed passes of the real loop, from which `analysis.costs.costs` makes c, v(gamma) and overhead.

A probe is a few passes, begun inside completions that the target wrote, at places spread over their length, so
that caches are as long as in a run and the engine is the one that a run uses. The first pass of a completion is timed
from its own beginning, for there an engine makes ready what belongs to the source. Every round visits the baseline and
each candidate at every gamma in turn, in random order: the buffers and caches that a neighbour leaves change times by a
few percent, and a fixed order would always favour the same candidates.
"""

import gc
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TypeVar

import numpy as np
import torch

from specbench.algorithm.batching import together
from specbench.algorithm.decoding import Decoding, DecodingSpec, autoregress, autoregressive, speculate, speculative
from specbench.algorithm.draft import Draft
from specbench.algorithm.gamma import Constant
from specbench.engine.batch import Batch
from specbench.engine.session import Model, Prompt
from specbench.records.decoded import Pass, Trace
from specbench.records.timed_rounds import Key, Round, Timed

T = TypeVar("T")
WrittenText = tuple[Prompt, Sequence[int]]  # a prompt and what the target wrote
STEPS, MOST_STEPS = 16, 64  # baseline steps of a visit
LONG_S = 0.008  # what a visit's steps take at least, up to MOST_STEPS: the longer a call, the more it is interrupted
PASSES = 9  # of each (candidate, gamma) a round, if all tokens are accepted; fewer if the completion ends
COLD = 4  # passes or steps after a jump into a text that do not count: caches hold a neighbour's weights
GOLDEN, SILVER = 0.618034, 0.414214  # multiples of each spread evenly over 0 ... 1, however few


@dataclass(frozen=True)
class Candidate:
    """A draft, and how completions are decoded with it; the gamma is the probe's to set.

    `levels` is the depth of the draft's trees, the only depth at which it is timed; None if it drafts chains.
    """

    draft: Draft
    spec: DecodingSpec
    levels: int | None = None

    def gammas(self, asked: Sequence[int]) -> Sequence[int]:
        """At which gammas it is timed, of those asked for."""
        return asked if self.levels is None else [self.levels]


Timing = Callable[[Callable[[], Round]], Round]  # times a round, perhaps more than once


def once(work: Callable[[], Round]) -> Round:
    """Time a round once."""
    return work()


def probe(
    target: Model,
    candidates: Mapping[str, Candidate],
    gammas: Sequence[int],
    texts: Sequence[WrittenText],
    *,
    rounds: int,
    seed: int = 0,
    first: int = 0,
    timing: Timing = once,
    steps: int | None = None,
    told: Callable[[Sequence[Round]], None] = lambda _: None,
) -> list[Round]:
    """Time `rounds` rounds over `texts`, numbered from `first`, each by `timing`; `told` receives those done so far.

    If `first` is 0, an untimed warm-up round comes first. `steps`: the baseline's of a visit; None: as many as take
    `LONG_S`, which ranks of one target would not agree on.
    """
    timed = []
    if first == 0:
        _round(target, candidates, gammas, texts, -1, seed, steps)
        chains = [gamma for one in candidates.values() if one.levels is None for gamma in one.gammas(gammas)]
        _visit_lengths(target, sorted(set(chains)), texts, rounds, _common(candidates).max_new_tokens)
    for number in range(first, first + rounds):
        timed.append(timing(partial(_round, target, candidates, gammas, texts, number, seed, steps)))
        told(timed)
    return timed


def _common(candidates: Mapping[str, Candidate]) -> DecodingSpec:
    """The sampling and limits that all candidates have in common."""
    return next(iter(candidates.values())).spec


def _round(
    target: Model,
    candidates: Mapping[str, Candidate],
    gammas: Sequence[int],
    texts: Sequence[WrittenText],
    number: int,
    seed: int,
    steps_of_visit: int | None,
) -> Round:
    prompt, written = texts[text_of(texts, number)]
    # If a draft grows, its store belongs to the visited text. Otherwise all begin equally often: a run begins each
    # once.
    grows = any(candidate.draft.stores() for candidate in candidates.values())
    beginning = prompt if grows else texts[in_turn_of(len(texts), number)][0]
    max_new_tokens = _common(candidates).max_new_tokens

    def begin_and_rest(decode: Callable[[Prompt, int], list[T]], most: int, shortest: int) -> tuple[list[T], list[T]]:
        """What `decode` gave at the beginning of a completion, and further on in one, of about `most` tokens."""
        most = min(most, max_new_tokens)
        start = start_of(len(written), most, number, _cold(shortest))
        first = decode(beginning, min(shortest, max_new_tokens))[:1]
        if start == 0:
            return first, decode(prompt, most)[1:]
        begun = Prompt(prompt.source, (*prompt.prefix, *written[:start]))
        # Its first step may have to read the tokens so far, as none in a run.
        return first, _warm(decode(begun, most))

    def generator() -> torch.Generator:
        return torch.Generator(target.device).manual_seed(seed + number + 1)

    def steps(begun: Prompt, most: int) -> list[float]:
        return autoregressive(target, begun, replace(_common(candidates), max_new_tokens=most), generator()).steps_s

    def passes(candidate: Candidate, gamma: int, begun: Prompt, most: int) -> list[tuple[int, Pass]]:
        spec = replace(candidate.spec, gamma=Constant(gamma), max_new_tokens=most)
        trace = speculative(target, candidate.draft, begun, spec, generator())
        emitted = accumulate((one.emitted for one in trace.passes), initial=0)
        return [(min(gamma, most - before - 1), one) for before, one in zip(emitted, trace.passes, strict=False)]

    for candidate in candidates.values():  # untimed: engines make what belongs to a source's length at its first pass
        most = max(candidate.gammas(gammas))
        for begun in dict.fromkeys((prompt, beginning)):
            passes(candidate, most, begun, most + 1)
    if (several := steps_of_visit) is None:
        step_s = min(steps(prompt, min(COLD, max_new_tokens)))
        several = min(MOST_STEPS, max(STEPS, int(LONG_S / step_s)))
    keys = {name: [(name, gamma) for gamma in candidate.gammas(gammas)] for name, candidate in candidates.items()}
    this = Round.of({key: () for own in keys.values() for key in own})
    timed = this.by_key
    jobs: list[Key | None] = [job for own in keys.values() for job in (None, *own)]
    for job in np.random.default_rng([seed, number + 1]).permutation(len(jobs)):
        if (key := jobs[job]) is None:
            begins, later = begin_and_rest(steps, several, 1)
            this.first_steps_s.extend(begins)
            this.steps_s.extend(later)
            continue
        name, gamma = key
        first, others = begin_and_rest(partial(passes, candidates[name], gamma), PASSES * (gamma + 1), gamma + 1)
        timed[key].extend(
            Timed(
                asked, drafted, one.accepted, begins_text, one.draft_s, one.verify_s, one.accept_s,
                None if one.experts is None else sum(one.experts),
            )
            for seen, begins_text in ((first, True), (others, False))
            for asked, one in seen
            for drafted in (one.drafted if one.parents is None else asked,)
        )  # fmt: skip
    return this


def _warm(times: list[T]) -> list[T]:
    """`times` after the cold ones, or after the first if there are no others."""
    return times[COLD:] or times[1:]


def _cold(most: int) -> int:
    """The tokens of COLD passes that emit up to `most` each, if half of what they draft is accepted."""
    return COLD * (most + 1) // 2


def start_of(length: int, tokens: int, number: int, cold: int = 0) -> int:
    """Where round `number` begins in a completion of `length` tokens, so that about `tokens` are still to come.

    The first `cold` of these do not count: places begin as far before the completion, which those within it then spread
    over evenly. They would be later ones otherwise, where steps take longer.
    """
    return max(0, int((max(0, length - tokens) + cold) * (number * SILVER % 1)) - cold)


def in_turn_of(count: int, number: int) -> int:
    """The index in turn among `count` things: each once in `count` numbers, and fewer numbers are spread evenly."""
    stride = max(1, round(GOLDEN * count))
    while math.gcd(stride, count) > 1:
        stride += 1
    return number * stride % count


def text_of(texts: Sequence[WrittenText], number: int) -> int:
    """The index of the completion that round `number` visits.

    Each is visited as often as its share of the tokens: a run takes as many of its steps there, and steps in long
    completions take longer.
    """
    ends = list(accumulate(len(written) for _, written in texts))
    return min(bisect_right(ends, number * GOLDEN % 1 * ends[-1]), len(ends) - 1)


def _visit_lengths(
    target: Model, gammas: Sequence[int], texts: Sequence[WrittenText], rounds: int, max_new_tokens: int
) -> None:
    """Verify gamma + 1 positions once at every length that the rounds' passes will reach.

    Engines cache tensors that depend only on lengths. A run has soon visited all lengths; a few probes would compute
    them at every step.
    """
    prompt, longest = max(texts, key=lambda text: len(text[1]))
    tokens = [*prompt.prefix, *longest]
    session = target.start(prompt)
    for gamma in gammas:
        most = min(PASSES * (gamma + 1), max_new_tokens)
        starts = [
            start_of(len(texts[text_of(texts, number)][1]), most, number, _cold(gamma + 1)) for number in range(rounds)
        ]
        reached = {start + more for start in starts for more in range(most + 1)}
        session.extend(tokens[session.length :])
        for length in sorted(reached, reverse=True):
            place = len(prompt.prefix) - 1 + length
            if place < len(tokens) and place + gamma < (target.longest or math.inf):
                session.rollback(place)
                session.extend((tokens[place:] * (gamma + 1))[: gamma + 1])
        session.rollback(len(prompt.prefix) - 1)


@contextmanager
def already_collected() -> Iterator[None]:
    """A context in which the garbage collector does not scan existing objects.

    Torch and the captured graphs consist of so many objects that a scan takes 0.4 s, in the middle of an arbitrary
    step. Objects that the caller froze before remain frozen.
    """
    frozen_before = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen_before:
            gc.unfreeze()


def probe_rows(
    target: Model,
    candidates: Mapping[str, Candidate],
    gammas: Sequence[int],
    texts: Sequence[WrittenText],
    rows: int,
    *,
    rounds: int,
    seed: int = 0,
    timing: Timing = once,
    told: Callable[[Sequence[Round]], None] = lambda _: None,
) -> list[Round]:
    """Timed passes of a batch: `rounds` rounds over `rows` of `texts` at a time, after an untimed round.

    `told` receives the rounds done so far.

    All rows are at work: they begin inside completions that the target wrote, each at a place of its own, no completion
    ends, and only passes count in which no row had left. What a pass of the batch takes does not depend on how much one
    row drafts: others draft all of gamma.
    """
    batch = _endless(Batch.of(target, rows))
    batched = {}
    for name, candidate in candidates.items():
        draft = candidate.draft.in_batch(rows)
        for model in draft.models:
            _endless(model)
        batched[name] = replace(candidate, draft=draft)
    common = _common(candidates)

    def decoding(key: Key | None, begun: Prompt, most: int) -> Decoding:
        generator = torch.Generator(batch.device).manual_seed(seed)
        if key is None:
            return autoregress(batch, begun, replace(common, max_new_tokens=most), generator)
        spec = replace(batched[key[0]].spec, gamma=Constant(key[1]), max_new_tokens=most)
        return speculate(batch, batched[key[0]].draft, begun, spec, generator)

    def one_round(number: int) -> Round:
        """`_round` in a batch: a visit to the baseline and to each (candidate, gamma), in an order drawn as there.

        It differs in that each visit begins its texts anew, and that first passes are not timed.
        """
        this = Round.of({(name, gamma): () for name in batched for gamma in gammas})
        passes = this.by_key
        jobs: list[Key | None] = [None, *passes]
        for job in np.random.default_rng([seed, number + 1]).permutation(len(jobs)):
            key = jobs[job]
            shortest = 1 if key is None else key[1] + 1
            most = min(STEPS if key is None else PASSES * shortest, common.max_new_tokens)
            begun = _begun(texts, rows, number, most, _cold(shortest))
            traces = together([decoding(key, one, most) for one in begun], rows, batch)
            if key is None:
                this.steps_s.extend(_warm(_together(traces[0].steps_s, traces[0], rows)))
                continue
            times = [(one.draft_s, one.verify_s, one.accept_s) for one in traces[0].passes]
            passes[key].extend(
                Timed(key[1], key[1], 0, False, *each) for each in _warm(_together(times, traces[0], rows))
            )
        return this

    one_round(-1)
    timed = []
    for number in range(rounds):
        timed.append(timing(partial(one_round, number)))
        told(timed)
    return timed


def _begun(texts: Sequence[WrittenText], rows: int, number: int, most: int, cold: int) -> list[Prompt]:
    """`rows` prompts with a part of their completion."""
    found = []
    for row in range(rows):
        place = (number + 1) * rows + row
        prompt, written = texts[text_of(texts, place)]
        start = start_of(len(written), most, place, cold)
        found.append(Prompt(prompt.source, (*prompt.prefix, *written[:start])))
    return found


def _together(times: Sequence[T], trace: Trace, rows: int) -> list[T]:
    """The times of steps or passes that all rows had."""
    return [time for time, had in zip(times, trace.rows or (), strict=True) if had == rows]


def _endless(model: Model) -> Batch:
    """A batch in which no completion ends, so that all timed passes are full."""
    assert isinstance(model, Batch)
    model.eos_ids = frozenset()
    return model
