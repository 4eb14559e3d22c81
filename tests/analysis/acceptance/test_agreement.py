"""Agreement of drafts that cannot be scored."""

import pytest
import torch

from specbench.analysis.acceptance.agreement import agreements
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling
from tests.support.toy import PROMPT, VOCABULARY, ToyModel, random_table


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_whose_distribution_is_not_finite_has_no_alpha(temperature: float) -> None:
    """Nothing is drawn from it by teacher forcing, so nothing else would see it."""
    broken = ModelDraft(ToyModel(torch.full((VOCABULARY,) * 3, torch.nan)), VOCABULARY)
    with pytest.raises(FloatingPointError, match="not finite"):
        agreements(ToyModel(random_table(1)), [broken], PROMPT, [1, 2, 1], Sampling(temperature))
