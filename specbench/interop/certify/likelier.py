"""Under which other settings completions that fail are likelier: another T, top-p, top-k or penalty.

Each alternative is one key that differs from what the server claims. If tokens are drawn as claimed, the likelihood
under any other setting over that under the claimed ones is a martingale with mean 1, so that it exceeds x in fewer than
one of x cases (Ville's inequality), and the largest of N of them exceeds N x as rarely. An alternative is named from
`CHANCE` on.

At T = 0 tokens are no draws: an alternative is named if it explains all departures but one in ten.

Shapes: L positions, V tokens of the vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from specbench.analysis.acceptance.agreement import logits_along
from specbench.config.schema import SamplingConfig
from specbench.interop.certify.outputs import Output
from specbench.interop.certify.setup import Setup
from specbench.sampling import standardise
from specbench.text.processed import drawing
from specbench.text.processors import Processors, processors

CHANCE = 1000  # a setting is named by chance in fewer than one of so many files
MOST = 2000  # tokens that are read again
IMPOSSIBLE = -20.0  # log-probability of a token that cannot be drawn
UNEXPLAINED = 0.1  # largest share of the departures at T = 0 that an alternative may leave
FEWEST = 3  # departures at T = 0, below which no alternative is looked for
TEMPERATURES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0)  # times that which is claimed
OTHERS: dict[str, tuple[float | int | None, ...]] = {
    "top_p": (None, 0.5, 0.8, 0.9, 0.95, 0.99),
    "top_k": (None, 10, 20, 40, 50, 100),
    "min_p": (None, 0.05, 0.1),
    "repetition_penalty": (1.0, 1.05, 1.1, 1.2, 1.3, 1.5),
    "presence_penalty": (0.0, 0.5, 1.0, 1.5),
    "frequency_penalty": (0.0, 0.5, 1.0, 1.5),
}


def likelier(setup: Setup, rows: Sequence[Output]) -> str:
    """The setting under which the completions are likeliest, in words; '' if none is likelier beyond chance."""
    claimed = setup.config.sampling
    alternatives = list(_alternatives(claimed))
    made = [processors(one, setup.vocabulary, setup.target.eos_ids) for _, one in alternatives]
    own = processors(claimed, setup.vocabulary, setup.target.eos_ids)
    scored = [(own, claimed), *((processor, one) for processor, (_, one) in zip(made, alternatives, strict=True))]
    totals, tokens = [0.0] * len(scored), 0
    for row in rows:
        if tokens >= MOST:
            break
        for index, value in enumerate(_scores(setup, row, scored)):
            totals[index] += value
        tokens += len(row.tokens)
    best = max(range(len(alternatives)), key=lambda index: totals[index + 1], default=None)
    if best is None:
        return ""
    name, gain = alternatives[best][0], totals[best + 1] - totals[0]
    if claimed.temperature == 0:
        left, departures = (round(abs(one)) for one in (totals[best + 1], totals[0]))
        if departures < FEWEST or left > UNEXPLAINED * departures:
            return ""
        return f"with {name} {left} of {tokens:,} tokens would not be the best, not {departures}"
    if gain < math.log(CHANCE * len(alternatives)):
        return ""
    return f"likelier with {name} (by {gain:.0f} nats in {tokens:,} tokens)"


def _alternatives(claimed: SamplingConfig) -> Iterator[tuple[str, SamplingConfig]]:
    """Configs that differ from what is claimed in one key, with their names."""
    for factor in TEMPERATURES if claimed.temperature else ():
        value = round(factor * claimed.temperature, 4)
        yield f"temperature={value:g}", replace(claimed, temperature=value)
    for key, values in OTHERS.items():
        if claimed.temperature == 0 and not key.endswith("penalty"):
            continue
        for other in values:
            if other != getattr(claimed, key):
                off = other is None or other == getattr(SamplingConfig(), key)
                name = f"{key} off" if off else f"{key}={other}"
                yield name, replace(claimed, **cast(dict[str, Any], {key: other}))


def _scores(setup: Setup, row: Output, scored: Sequence[tuple[Processors | None, SamplingConfig]]) -> list[float]:
    """The log-probability of a completion under each config; at T = 0 less than 0 by 1 for each departure."""
    tokens, first = [*row.prompt.prefix, *row.tokens], len(row.prompt.prefix)
    totals = [0.0] * len(scored)
    for start, logits_LV in logits_along(setup.loaded.start(row.prompt), tokens, first):
        written_L1 = torch.tensor(tokens[start : start + len(logits_LV)], device=logits_LV.device)[:, None]
        before = [tokens[: start + place] for place in range(len(logits_LV))]
        for index, (processor, sampling) in enumerate(scored):
            rows_LV = logits_LV if processor is None else processor.processed(logits_LV, before, first)
            p_LV = standardise(rows_LV, drawing(sampling), setup.target.vocabulary_size)
            totals[index] += _score(p_LV.gather(1, written_L1), sampling.temperature == 0)
    return totals


def _score(p_L1: Tensor, greedy: bool) -> float:
    if greedy:
        return -float((p_L1 == 0).sum())
    return float(p_L1.cpu().double().log().clamp(min=IMPOSSIBLE).sum())
