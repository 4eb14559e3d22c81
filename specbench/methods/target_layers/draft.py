"""The target without some of its layers or sublayers, as the draft. Weights, encoded source and cache are the target's.

Early exit: the target's own first layers, then its final norm and head (Elhoushi et al. 2024, "LayerSkip", train a
target for it). The draft's layers have read all of a proposal but its last token when the target verifies it; their
cache of the proposal is dropped then, and all layers read it.

Layer skipping: the target without some of its attention and feed-forward sublayers (Zhang et al. 2024, "Draft & Verify:
Lossless Large Language Model Acceleration via Self-Speculative Decoding"). A search on a few completions chooses the
sublayers to skip (`choose.skips`).

An attention above a skipped sublayer reads other states than in the target, so that the draft's keys and values are not
the target's. A proposal therefore attends to the target's own for the tokens so far and to the draft's own for its
drafted tokens, which the target overwrites when it verifies.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.algorithm.draft import Draft, FollowsTarget
from specbench.config.model import name_of
from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.network_parts import Part, decoder_layers, part_without, sublayers
from specbench.engine.session import Model, Prompt, Session
from specbench.engine.weights.load import layers_of
from specbench.errors import UserError
from specbench.loading.model_loader import Say
from specbench.methods.build import DraftBuilder, DraftRequest
from specbench.methods.model.draft import ModelDraftSession
from specbench.methods.target_layers.config import EarlyExitConfig, LayerSkipConfig
from specbench.sampling import Sampling, standardise


class EarlyExitDraft(FollowsTarget):
    """The first `layers` decoder layers of `target`, 1 to all of them."""

    def __init__(self, target: Model, layers: int) -> None:
        self.target, self.part = target, Part(layers)
        self.operations = target.shallow(*self.part).operations

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> ModelDraftSession:
        shared = session.shallow(*self.part)
        return EarlyExitSession(self.target, shared, sampling, self.target.vocabulary_size)


class EarlyExitSession(ModelDraftSession):
    """The first layers at work in the target's own session, which also selects the accepted path for them."""

    def select(self, path: Sequence[int]) -> None:
        """The target has read the tree again, and selected."""


class EarlyExitBuilder(DraftBuilder[EarlyExitConfig]):
    """Builds `draft=early-exit`."""

    def __init__(self, request: DraftRequest[EarlyExitConfig]) -> None:
        super().__init__(request)
        target, layers = request.run.target, self.draft.layers
        most = layers_of(target, "target")
        if layers > most:
            raise UserError(f"{request.key}.layers={layers}: {name_of(target)} has {most} decoder layers")

    def load(self, target: EagerModel, say: Say) -> Draft:
        return EarlyExitDraft(target, self.draft.layers)


class LayerSkipDraft(EarlyExitDraft):
    """`target` without the sublayers named `skip` ('attn3', 'mlp3'; 'layer3' is all of layer 3).

    Raises ValueError if there is no such sublayer.
    """

    def __init__(self, target: Model, skip: Sequence[str]) -> None:
        self.target = target
        self.part = part_without(decoder_layers(target.network), skip, sublayers(target.network))
        self.operations = target.shallow(*self.part).operations

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> "LayerSkipSession":
        return LayerSkipSession(self, session, prompt, sampling)


class LayerSkipSession(EarlyExitSession):
    """The remaining sublayers at work in the target's own session."""

    def __init__(self, draft: LayerSkipDraft, session: Session, prompt: Prompt, sampling: Sampling) -> None:
        target = draft.target
        shared = session.shallow(*draft.part)
        super().__init__(target, shared, sampling, target.vocabulary_size)
        self._draft, self._prompt = draft, prompt
        self._scoring: Session | None = None

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
