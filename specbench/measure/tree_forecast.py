"""What a run's trees are expected to give, from the target's own text alone: by teacher forcing along it, before a tree
is verified. Beside what passes gave it tests the estimate."""

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
    """The passes [2, depth + 1] that this text needs with the trees of `draft` (`measure.expected_tree_passes`): from
    the `ranks` of its children along the text, or by growing each tree where the children are not drawn: at T = 0, by
    the draft's confidence, or where they are `found` in a text. None where neither is possible."""
    if isinstance(draft.plan, FixedShape) and ranks is not None:
        return tree_passes(ranks.given_for(draft.children), draft.plan.shape, most)
    if isinstance(draft.plan, FixedShape) and not found and sampling.temperature > 0:
        return None
    return replayed_passes(target, draft, prompt, text, sampling, most)
