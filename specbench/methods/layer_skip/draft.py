"""Layer skipping: the target without some of its attention and feed-forward sublayers, as the draft.

Zhang et al. 2024, "Draft & Verify: Lossless Large Language Model Acceleration via Self-Speculative Decoding". As in
early exit, which skips exactly the last layers, weights, encoded source and cache are the target's. A search on a few
completions chooses the sublayers to skip (`choose.skips`).

An attention above a skipped sublayer reads other states than in the target, so that the draft's keys and values are not
the target's. A proposal therefore attends to the target's own for the tokens so far and to the draft's own for its
drafted tokens, which the target overwrites when it verifies.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from specbench.algorithm.draft import Draft
from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.parts import decoder_layers, sublayers
from specbench.engine.session import LayeredModel, LayeredSession, Prompt, Session, without
from specbench.errors import UserError
from specbench.loading.model_loader import Say
from specbench.methods.build import DraftBuilder, DraftRequest
from specbench.methods.early_exit.draft import EarlyExitDraft, EarlyExitSession
from specbench.methods.layer_skip.config import LayerSkipConfig
from specbench.sampling import Sampling, standardise


class LayerSkipDraft(EarlyExitDraft):
    """`target` without the sublayers named `skip` ('attn3', 'mlp3'; 'layer3' is all of layer 3).

    Raises:
        ValueError: there is no such sublayer.
    """

    def __init__(self, target: LayeredModel, skip: Sequence[str]) -> None:
        self.target = target
        self.part = without(decoder_layers(target.network), skip, sublayers(target.network))

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> "LayerSkipSession":
        return LayerSkipSession(self, cast(LayeredSession, session), prompt, sampling)


class LayerSkipSession(EarlyExitSession):
    """The remaining sublayers at work in the target's own session."""

    def __init__(self, draft: LayerSkipDraft, session: LayeredSession, prompt: Prompt, sampling: Sampling) -> None:
        target = draft.target
        shared = session.shallow(*draft.part)
        super().__init__(target, shared, sampling, target.vocabulary_size)
        self._draft, self._prompt = draft, prompt
        self._scoring: LayeredSession | None = None

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        """q of the first token of a proposal at each position.

        It attends to the target's keys and values, which are read token by token in a session of its own: scoring costs
        a step of the target a token.
        """
        session = self._scoring = self._scoring or self._draft.target.start(self._prompt)
        part, rows = session.shallow(*self._draft.part), []
        for end in range(prefix_length, len(tokens)):
            if session.length < end - 1:
                session.extend(tokens[session.length : end - 1])
            rows.append(part.extend(tokens[end - 1 : end]))
        return standardise(torch.cat(rows), self.sampling, self.vocabulary_size)


class LayerSkipBuilder(DraftBuilder[LayerSkipConfig]):
    """Builds `draft=layer-skip`."""

    def __init__(self, request: DraftRequest[LayerSkipConfig]) -> None:
        super().__init__(request)
        if self.draft.searches:
            raise UserError(
                f"{request.key}.skip=[auto]: `specbench recommend draft=layer-skip 'draft.skip=[auto]'` searches for "
                "the sublayers and prints them; give those"
            )

    def load(self, target: EagerModel, say: Say) -> Draft:
        try:
            return LayerSkipDraft(target, self.draft.skip)
        except ValueError as error:
            given = ",".join(self.draft.skip)
            raise UserError(f"{self.request.key}.skip=[{given}]: {error}") from error
