"""How well drafts agree with the target along its own text, by teacher forcing: beta at each position, whose mean is
alpha (Theorem 3.5, Corollary 3.6).

One reading of the text by the target serves all drafts. Distributions are made `CHUNK` positions at a time and dropped:
however long the text, a dozen tensors of CHUNK x V numbers are alive (0.4 GB at a vocabulary of 32k; half without
leniences).

Shapes: L positions of a chunk, V tokens of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench.drafts import Draft
from specbench.measure.lenience import accepted, compared, strayed
from specbench.models import Model, Prompt
from specbench.sampling import Sampling, standardise

CHUNK = 256


@dataclass(frozen=True)
class Agreement:
    """One draft along one text x_1 ... x_n of the target; every list has an entry a token.

    beta: sum_x min(p(x), q(x)), the chance that the draft's token is accepted here. Its mean is alpha.
    kept: min(1, q(x_i) / p(x_i)), the same chance given that the text goes on with x_i. Where a pass has got to i, the
        events along a text drawn from p are independent given the text, with these chances, so that products of them
        over neighbours are right where products of betas are not: after an accepted token the text is no longer a
        draw from p alone. `measure.positions` counts passes with them.
    silent: whether the draft has nothing to propose here (a look-up that finds no match).
    lenient: the same chance as beta under each lenience l (A.5, `measure.lenience`). Its mean is alpha(l).
    strayed: how far the token that comes out under l is from the target's, in total variation.

    At T = 0 p and q are one-hot, and both beta and kept are 1 where the argmaxes agree and 0 elsewhere.
    """

    beta: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    silent: list[bool] = field(default_factory=list)
    lenient: dict[float, list[float]] = field(default_factory=dict)
    strayed: dict[float, list[float]] = field(default_factory=dict)


def agreements(
    target: Model,
    drafts: Sequence[Draft],
    prompt: Prompt,
    generated: Sequence[int],
    sampling: Sampling,
    leniences: Sequence[float] = (),
) -> list[Agreement]:
    """One `Agreement` a draft, along `generated`, which the target wrote under this very `sampling`."""
    tokens = [*prompt.prefix, *generated]
    first, end = len(prompt.prefix), len(prompt.prefix) + len(generated)
    session = target.start(prompt)
    drafting = [draft.start(prompt, sampling) for draft in drafts]
    found = [Agreement(lenient={x: [] for x in leniences}, strayed={x: [] for x in leniences}) for _ in drafts]
    greedy = sampling.temperature == 0
    for start in range(first, end, CHUNK):
        stop = min(start + CHUNK, end)
        logits_LV = session.extend(tokens[session.length : stop - 1])
        p_LV = standardise(logits_LV[-(stop - start) :], sampling, target.vocabulary_size)
        compared_LV = compared(logits_LV[-(stop - start) :], sampling, target.vocabulary_size) if leniences else p_LV
        written_L1 = torch.tensor(tokens[start:stop], device=p_LV.device).unsqueeze(-1)
        for one, agreement in zip(drafting, found, strict=True):
            q_LV = one.score(tokens[:stop], start)
            agreement.beta.extend(p_LV.minimum(q_LV).sum(-1).tolist())
            agreement.silent.extend((q_LV.sum(-1) == 0).tolist())
            agreement.kept.extend(_kept(p_LV.gather(-1, written_L1), q_LV.gather(-1, written_L1)))
            for lenience in leniences:
                agreement.lenient[lenience].extend(accepted(compared_LV, q_LV, lenience, greedy).tolist())
                agreement.strayed[lenience].extend(strayed(compared_LV, q_LV, lenience, greedy).tolist())
    return found


def _kept(p_L1: Tensor, q_L1: Tensor) -> list[float]:
    """min(1, q / p) of the tokens written. p is 0 only where rounding tells two ways of computing it apart; the
    token was written all the same."""
    ratio_L1 = torch.where(p_L1 > 0, q_L1 / p_L1, (q_L1 > 0).to(q_L1.dtype))
    values: list[float] = ratio_L1.clamp(max=1).squeeze(-1).tolist()
    return values


def beta(target: Model, draft: Draft, prompt: Prompt, generated: Sequence[int], sampling: Sampling) -> list[float]:
    """beta of one draft at each of the tokens that the target generated."""
    return agreements(target, [draft], prompt, generated, sampling)[0].beta
