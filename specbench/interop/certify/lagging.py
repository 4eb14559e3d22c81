"""Whether penalties lag: a server that applies them once per block misses the block's own draft tokens in them.

A token of a block then has the penalties of the text before the block. Where blocks begin is not in the completions, so
at T > 0 the alternative is that each token is drawn with penalties that leave out the last 0 to `LONGEST` tokens, each
as often. The likelihood under it over that under right penalties exceeds x by chance in fewer than one of x files
(Ville's inequality); from `CHANCE` on it is a fault. At T = 0 each departure must be the best token with penalties that
leave out some of the last tokens.

Shapes: L positions, V tokens of the vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specbench.analysis.acceptance.agreement import logits_along
from specbench.interop.certify.outputs import Output
from specbench.interop.certify.setup import Setup
from specbench.sampling import standardise
from specbench.text.processors import Processors, processors

CHANCE = 10_000
LONGEST = 4  # tokens
FEWEST = 3  # departures, below which nothing is said
SAID = "as of penalties that are applied once a block and miss its own draft tokens"


def lagging_nats(setup: Setup, rows: Sequence[Output]) -> float:
    """By how many nats sampled completions are likelier with lagging penalties; 0 without penalties."""
    if not _has_penalties(setup):
        return 0.0
    found = 0.0
    for row in rows:
        for written_L1, by_lag in _rows(setup, row):
            p_JL = torch.cat([
                standardise(rows_LV, setup.sampling, setup.target.vocabulary_size).gather(1, written_L1)
                for rows_LV in by_lag
            ], 1).cpu().double()  # fmt: skip
            possible = p_JL[:, 0] > 0
            found += float((p_JL.mean(1) / p_JL[:, 0])[possible].log().sum())
    return found


def is_lagging(nats: float) -> bool:
    """Whether chance would show so many nats in fewer than one of `CHANCE` files."""
    return nats > math.log(CHANCE)


def lagging_choices(setup: Setup, rows: Sequence[Output]) -> str:
    """A sentence that lagging penalties explain each departure of greedy completions; '' if they do not."""
    if not _has_penalties(setup):
        return ""
    departures = explained = 0
    for row in rows:
        for written_L1, by_lag in _rows(setup, row):
            best_LJ = torch.cat([rows_LV.argmax(-1, keepdim=True) for rows_LV in by_lag], 1) == written_L1
            departs_L = ~best_LJ[:, 0]
            departures += int(departs_L.sum())
            explained += int((departs_L & best_LJ.any(1)).sum())
    if departures < FEWEST or explained < departures:
        return ""
    return f"each of the {departures} other tokens is the best without the penalties of the last tokens, {SAID}"


def _has_penalties(setup: Setup) -> bool:
    sampling = setup.config.sampling
    return sampling.repetition_penalty != 1 or bool(sampling.presence_penalty or sampling.frequency_penalty)


def _rows(setup: Setup, row: Output) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Chunks of a completion: its tokens [L, 1], and the logits [L, V] with penalties that lag by 0, 1, ... tokens."""
    full = processors(setup.config.sampling, setup.vocabulary, setup.target.eos_ids)
    assert full is not None
    penalties = Processors(full.size, full.ends, full.repetition, full.presence, full.frequency)
    others = replace(full, repetition=1.0, presence=0.0, frequency=0.0)
    tokens, first = [*row.prompt.prefix, *row.tokens], len(row.prompt.prefix)
    for start, logits_LV in logits_along(setup.loaded.start(row.prompt), tokens, first):
        ends = range(start, start + len(logits_LV))
        before = [tokens[:end] for end in ends]
        by_lag = []
        for lag in range(LONGEST + 1):
            seen = [tokens[: max(first, end - lag)] for end in ends]
            by_lag.append(others.processed(penalties.processed(logits_LV, seen, first), before, first))
        yield torch.tensor(tokens[start : start + len(logits_LV)], device=logits_LV.device)[:, None], by_lag
