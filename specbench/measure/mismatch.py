"""The cost of a draft's other vocabulary, along the target's own completion.

Shapes: L positions, V tokens of the target's vocabulary.
"""

import torch
from torch import Tensor

from specbench.drafts import DraftSession, TextDraftSession
from specbench.models import TranslatedModel
from specbench.sampling import Sampling, standardise


def mismatch(
    session: DraftSession, logits_LV: Tensor, p_LV: Tensor, q_LV: Tensor, sampling: Sampling
) -> tuple[list[float], list[float]] | None:
    """The cost of differing vocabularies at each position that `session` has just scored as `q_LV`.

    None for a draft of the target's own vocabulary.

    Returns:
        The target's probability of the shared tokens, and the acceptance probability without the mismatch. By token
            (tli):
        if the target wrote shared tokens alone (its other logits masked). By string (slem): if every token that is a
        prefix of the drafted string is accepted, however the target's tokenizer splits that string.
    """
    model = getattr(session, "model", None)
    if not isinstance(model, TranslatedModel):
        return None
    shared_L = p_LV[:, model.targets_S].sum(-1)
    if isinstance(session, TextDraftSession):
        begun = [model.translation.beginnings(text) for text in session.texts]
        matched = [float(p_LV[row, tokens].sum()) for row, tokens in enumerate(begun)]
    else:
        alone_LV = torch.full_like(logits_LV, -torch.inf)
        alone_LV[:, model.targets_S] = logits_LV[:, model.targets_S]
        matched = standardise(alone_LV, sampling, model.vocabulary_size).minimum(q_LV).sum(-1).tolist()
    return shared_L.tolist(), matched
