"""Preparation of rows before their test: copies are left out, and ends that a row does not name are found."""

from collections.abc import Callable, Hashable
from dataclasses import replace

import torch

from specbench.analysis.acceptance.agreement import logits_along
from specbench.interop.certify.outputs import Output, Outputs
from specbench.interop.certify.setup import Setup, generator_of
from specbench.sampling import standardise, widest

COPIES = "the prompt and the completion of an earlier row"


def drop_copies(found: Outputs, is_copy: Callable[[Output], bool]) -> None:
    """Leave out rows with the prompt and the completion of an earlier row, as a reused seed or a cache makes them.

    They are no further evidence. A sampled completion may also be drawn twice, so `is_copy` decides.
    """
    seen, rows = set[Hashable](), []
    copies: dict[Hashable, bool] = {}
    for row in found.rows:
        key = (row.prompt, tuple(row.tokens), row.ends, row.text)
        if key in seen and copies.setdefault(key, is_copy(row)):
            found.left_out[COPIES] += 1
        else:
            rows.append(row)
        seen.add(key)
    found.rows[:] = rows


def log_probability(setup: Setup, row: Output) -> float:
    """The log-probability (natural) of a completion under the target."""
    tokens, first = [*row.prompt.prefix, *row.tokens], len(row.prompt.prefix)
    total = 0.0
    for start, logits_LV in logits_along(setup.target.start(row.prompt), tokens, first):
        p_LV = standardise(logits_LV, setup.sampling, setup.target.vocabulary_size)
        chosen = torch.tensor(tokens[start : start + len(p_LV)], device=p_LV.device)
        total += float(p_LV.gather(1, chosen[:, None]).cpu().double().log().sum())
    return total


def with_ends(setup: Setup, found: Outputs) -> None:
    """Append an end to rows that ended with one of several and do not say which.

    At T = 0 it is the end that the target prefers: if that is not its choice, no other end is. At T > 0 it is drawn
    from the target's probabilities of these ends, so that the completions of a right server keep its distribution.
    """
    for place, row in enumerate(found.rows):
        if not row.ends:
            continue
        session = setup.target.start(row.prompt)
        logits_V = session.extend([*row.prompt.prefix, *row.tokens][session.length :])[-1]
        p_E = standardise(logits_V[None], setup.sampling, setup.target.vocabulary_size)[0, list(row.ends)].to(
            widest(logits_V.device)
        )
        if setup.sampling.temperature and float(p_E.sum()) > 0:
            chosen = int(torch.multinomial(p_E, 1, generator=generator_of(setup, place)))
        else:
            chosen = int(logits_V[list(row.ends)].argmax())
        found.rows[place] = replace(row, tokens=[*row.tokens, row.ends[chosen]], ends=())
