"""Passes that a run's trees need for a completion of the target, by teacher forcing, before a tree is verified.

Compared with the measured passes they test the estimate. A tree that grows by the draft's confidence has another shape
at each token. Then the draft proposes along the completion, and its passes equal decoding's, since its children are not
drawn.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from specbench.algorithm.tree_draft import TreeDraft
from specbench.analysis.acceptance.ranks import Ranks, k_seq_of
from specbench.analysis.forecast import tree_passes
from specbench.engine.session import Model, Prompt
from specbench.sampling import Sampling
from specbench.theory.trees import ROOT, Plan, TreeShape


def replayed_passes(
    target: Model, draft: TreeDraft, prompt: Prompt, text: Sequence[int], sampling: Sampling, most: int
) -> NDArray[np.float64]:
    """The passes [2, depth + 1] over this completion of a draft whose children are not drawn, by growing each tree."""
    session = target.start(prompt)
    drafting = draft.start_on(session, prompt, sampling)
    depth, follows = draft.plan.depth, draft.draft.starts_on_target
    found = np.zeros((2, depth + 1))
    tokens, end = list(prompt.prefix), len(prompt.prefix) + len(text)
    begin, generator = len(tokens), torch.Generator()
    while len(tokens) < end:
        levels = min(depth, begin + most - len(tokens) - 1)
        found[min(len(tokens) - begin, 1), levels] += 1
        if follows and len(tokens) - 1 > session.length:
            session.extend(tokens[session.length : -1])
        proposal = drafting.propose(tokens, levels, generator)
        parents = proposal.parents or ()
        path: list[int] = []
        while len(tokens) < end:
            node = path[-1] if path else ROOT
            tokens.append(text[len(tokens) - begin])
            children = (one for one, parent in enumerate(parents) if parent == node)
            child = next((one for one in children if proposal.tokens[one] == tokens[-1]), None)
            if child is None:
                break
            path.append(child)
        if proposal.parents is not None:
            drafting.select(path if len(tokens) < end else path[:-1])
        drafting.rollback(len(tokens) - 1)
    return found


def forecast_passes(
    target: Model,
    draft: TreeDraft,
    prompt: Prompt,
    text: Sequence[int],
    sampling: Sampling,
    most: int,
    ranks: Ranks | None,
    found_in_text: bool = False,
    k_seq: bool = False,
) -> NDArray[np.float64] | None:
    """The passes [2, depth + 1] that this completion needs with the trees of `draft`.

    They follow from the `ranks` of its children along the completion; or, if children are not drawn (T = 0, trees by
    the draft's confidence, children `found_in_text`), from growing each tree. None if neither is possible.
    `k_seq`: K-SEQ verifies them, whose ranks depend on how many children a node has.
    """
    if isinstance(draft.plan, TreeShape) and ranks is not None:
        of_count = {count: ranks.given_for(k_seq_of(count)) for count in counts_of_children(draft.plan) if k_seq}
        return tree_passes(ranks.given_for("fixed" if k_seq else draft.children), draft.plan, most, of_count)
    if isinstance(draft.plan, TreeShape) and not found_in_text and sampling.temperature > 0:
        return None
    return replayed_passes(target, draft, prompt, text, sampling, most)


def counts_of_children(plan: Plan) -> set[int]:
    """How many children the nodes of a plan have that has a fixed shape, leaves aside; none of another plan."""
    return set(plan.children) - {0} if isinstance(plan, TreeShape) else set()
