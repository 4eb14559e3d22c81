"""Acceptance by rank: how often a draft's first, second, ... child is the one that is accepted, by teacher forcing
along the target's own texts. What Sequoia's dynamic programme is given.

Shapes: L positions of a chunk, V tokens of the vocabulary, K children.
"""

from collections.abc import Sequence

import torch

from specbench.acceptance import Children
from specbench.acceptance.tree.rounds import Fixed, Node, WithoutReplacement, WithReplacement, acceptance_by_rank
from specbench.drafts import Draft, start_beside
from specbench.drafts.children import choose
from specbench.measure.agreement import logits_along
from specbench.models import Model, Prompt
from specbench.sampling import Sampling, before_argmax, standardise

ROUNDS: dict[Children, type[Node]] = {
    "fixed": Fixed,
    "replaced": WithReplacement,
    "distinct": WithoutReplacement,
}


def acceptance_vector(
    target: Model,
    draft: Draft,
    prompts: Sequence[Prompt],
    texts: Sequence[Sequence[int]],
    sampling: Sampling,
    children: Children,
    most: int,
    generator: torch.Generator,
) -> list[float]:
    """P[k], the share of positions at which child k of up to `most` is the accepted one: the expected acceptance of
    children that are chosen at each position as in a run. `texts` were written by the target under this `sampling`.
    Zeros where there is no text."""
    # At T = 0 children are the likeliest tokens of q, which a one-hot row does not tell apart.
    children = "fixed" if sampling.temperature == 0 else children
    sums, places = [0.0] * most, 0
    for prompt, text in zip(prompts, texts, strict=True):
        tokens, first = [*prompt.prefix, *text], len(prompt.prefix)
        session = target.start(prompt)
        drafting = start_beside(session, draft, prompt, before_argmax(sampling))
        for start, logits_LV in logits_along(session, tokens, first):
            p_LV = standardise(logits_LV, sampling, target.vocabulary_size)
            q_LV = drafting.score(tokens[: start + len(p_LV)], start)
            for p_V, q_V in zip(p_LV, q_LV, strict=True):
                chosen = choose(q_V, most, children, generator)
                found = acceptance_by_rank(p_V, q_V.expand(len(chosen), -1), chosen, ROUNDS[children])
                for rank, accepted in enumerate(found):
                    sums[rank] += accepted
                places += 1
    return [total / max(1, places) for total in sums]
