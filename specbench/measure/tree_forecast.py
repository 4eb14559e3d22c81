"""Expected passes of a run's trees by teacher forcing along the target's completions, before a tree is verified.

Compared with the measured passes it tests the estimate.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specbench.drafts import TreeDraft
from specbench.measure.expected_tree_passes import replayed_passes, tree_passes
from specbench.measure.ranks import Ranks, k_seq_of
from specbench.models import Model, Prompt
from specbench.sampling import Sampling
from specbench.trees import FixedShape, Plan


def forecast_passes(
    target: Model,
    draft: TreeDraft,
    prompt: Prompt,
    text: Sequence[int],
    sampling: Sampling,
    most: int,
    ranks: Ranks | None,
    found: bool = False,
    k_seq: bool = False,
) -> NDArray[np.float64] | None:
    """The passes [2, depth + 1] that this completion needs with the trees of `draft` (`measure.expected_tree_passes`).

    They follow from the `ranks` of its children along the completion; or, where children are not drawn (T = 0, trees by
    the draft's confidence, children `found` in a text), from growing each tree. None where neither is possible.
    `k_seq`: K-SEQ verifies them, whose ranks depend on how many children a node has.
    """
    if isinstance(draft.plan, FixedShape) and ranks is not None:
        if k_seq:
            of_count = {count: ranks.given_for(k_seq_of(count)) for count in counts_of_children(draft.plan)}
            return tree_passes(ranks.given_for("fixed"), draft.plan.shape, most, of_count)
        return tree_passes(ranks.given_for(draft.children), draft.plan.shape, most)
    if isinstance(draft.plan, FixedShape) and not found and sampling.temperature > 0:
        return None
    return replayed_passes(target, draft, prompt, text, sampling, most)


def counts_of_children(plan: Plan) -> set[int]:
    """How many children the nodes of a plan have that has a fixed shape, leaves aside; none of another plan."""
    return set(plan.shape.children) - {0} if isinstance(plan, FixedShape) else set()
