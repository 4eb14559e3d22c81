"""Acceptance by rank of drafts whose children do not all come from the row of q that they are scored with.

These are copies of several places, and several drafts in one tree. `measure.ranks` has the others, by formulas.

Shapes: V tokens of the vocabulary.
"""

from collections.abc import Sequence

import torch

from specbench.acceptance.tree import ROUNDS
from specbench.acceptance.tree.rounds import acceptance_by_rank
from specbench.drafts import TreeDraft
from specbench.models import Model, Prompt
from specbench.sampling import Sampling, standardise


def acceptance_when_grown(
    target: Model,
    draft: TreeDraft,
    prompts: Sequence[Prompt],
    texts: Sequence[Sequence[int]],
    sampling: Sampling,
    most: int,
    generator: torch.Generator,
) -> list[float]:
    """P[k], the share of positions at which child k of up to `most` is accepted; zeros where there is no completion.

    It is the expected acceptance of the children that `draft`, whose plan is one level of `most` nodes, grows at each
    position. The target wrote `texts` under this `sampling`.
    """
    sums, places = [0.0] * most, 0
    for prompt, text in zip(prompts, texts, strict=True):
        tokens = [*prompt.prefix, *text]
        session = target.start(prompt)
        drafting = draft.start_on(session, prompt, sampling)
        for end in range(len(prompt.prefix), len(tokens)):
            proposal = drafting.propose(tokens[:end], 1, generator)
            p_V = standardise(session.extend(tokens[session.length : end])[-1:], sampling, target.vocabulary_size)[0]
            q_NV = [p_V] * len(proposal.tokens) if proposal.q_NV is None else proposal.q_NV
            for rank, accepted in enumerate(acceptance_by_rank(p_V, q_NV, proposal.tokens, ROUNDS[proposal.children])):
                sums[rank] += accepted
            if proposal.parents is not None:
                drafting.select([])
            drafting.rollback(end)
            places += 1
    return [total / max(1, places) for total in sums]
