"""Expected passes of a run's trees by teacher forcing along the target's completions, before a tree is verified.

Compared with the measured passes it tests the estimate.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specbench.drafts import TreeDraft
from specbench.measure.expected_tree_passes import replayed_passes, tree_passes
from specbench.measure.ranks import Ranks
from specbench.models import Model, Prompt
from specbench.sampling import Sampling
from specbench.trees import FixedShape


def forecast_passes(
    target: Model,
    draft: TreeDraft,
    prompt: Prompt,
    text: Sequence[int],
    sampling: Sampling,
    most: int,
    ranks: Ranks | None,
    found: bool = False,
) -> NDArray[np.float64] | None:
    """The passes [2, depth + 1] that this completion needs with the trees of `draft` (`measure.expected_tree_passes`).

    They follow from the `ranks` of its children along the completion; or, where children are not drawn (T = 0, trees by
    the draft's confidence, children `found` in a text), from growing each tree. None where neither is possible.
    """
    if isinstance(draft.plan, FixedShape) and ranks is not None:
        return tree_passes(ranks.given_for(draft.children), draft.plan.shape, most)
    if isinstance(draft.plan, FixedShape) and not found and sampling.temperature > 0:
        return None
    return replayed_passes(target, draft, prompt, text, sampling, most)
