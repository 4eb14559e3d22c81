"""Timed passes of a batch, from which `analysis.costs.costs` makes c(B), v(B, gamma) and overhead.

As `analysis.costs.probe`, with all rows at work: rows begin inside completions that the target wrote, each at a place
of its own, no completion ends, and only passes count in which no row had left. What a pass of the batch takes does not
depend
on how much one row drafts: others draft all of gamma.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from specbench.algorithm.decoding.sequence import Decoding, autoregress, speculate
from specbench.algorithm.decoding.spec import Trace
from specbench.algorithm.decoding.together import together
from specbench.algorithm.draft import in_batch, models_of
from specbench.algorithm.gamma import Constant
from specbench.analysis.costs.probe import (
    PASSES,
    STEPS,
    Candidate,
    Key,
    Round,
    Timed,
    Timing,
    WrittenText,
    once,
    start_of,
)
from specbench.engine.batch import Batch
from specbench.engine.session import Model, Prompt

T = TypeVar("T")


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
) -> list[Round]:
    """`rounds` rounds over `rows` of `texts` at a time, each timed by `timing`, after an untimed round."""
    batch = _endless(Batch.of(target, rows))
    inside = {}
    for name, candidate in candidates.items():
        draft = in_batch(candidate.draft, rows)
        for model in models_of(draft):
            _endless(model)
        inside[name] = replace(candidate, draft=draft)
    limit = next(iter(candidates.values())).spec.max_new_tokens

    def one_round(number: int) -> Round:
        this = Round([], {(name, gamma): [] for name in inside for gamma in gammas}, [])
        jobs: list[Key | None] = [None, *this.passes]
        for job in np.random.default_rng([seed, number + 1]).permutation(len(jobs)):
            key = jobs[job]
            most = min(STEPS if key is None else PASSES * (key[1] + 1), limit)
            decodings = [
                _decoding(batch, None if key is None else inside[key[0]], inside, key, begun, most, seed)
                for begun in _begun(texts, rows, number, most)
            ]
            traces = together(decodings, rows, batch)
            if key is None:
                this.steps_s.extend(_together(traces[0].steps_s, traces[0], rows)[1:])
                continue
            times = [(one.draft_s, one.verify_s, one.accept_s) for one in traces[0].passes]
            this.passes[key].extend(
                Timed(key[1], key[1], 0, False, *each) for each in _together(times, traces[0], rows)[1:]
            )
        return this

    one_round(-1)
    return [timing(partial(one_round, number)) for number in range(rounds)]


def _decoding(
    batch: Batch,
    candidate: Candidate | None,
    candidates: Mapping[str, Candidate],
    key: Key | None,
    begun: Prompt,
    most: int,
    seed: int,
) -> Decoding:
    generator = torch.Generator(batch.device).manual_seed(seed)
    if candidate is None or key is None:
        spec = next(iter(candidates.values())).spec
        return autoregress(batch, begun, replace(spec, max_new_tokens=most), generator)
    spec = replace(candidate.spec, gamma=Constant(key[1]), max_new_tokens=most)
    return speculate(batch, candidate.draft, begun, spec, generator)


def _begun(texts: Sequence[WrittenText], rows: int, number: int, most: int) -> list[Prompt]:
    """`rows` prompts with a part of their completion."""
    found = []
    for row in range(rows):
        place = (number + 1) * rows + row
        prompt, written = texts[place % len(texts)]
        start = start_of(len(written), most, place)
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
