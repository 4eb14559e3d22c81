"""Early exit: the target's own first layers, then its final norm and head, as the draft.

Elhoushi et al. 2024, "LayerSkip", train a target to exit early. Weights, encoded source and cache are the target's, so
nothing is loaded or stored twice. The draft's layers have read all of a proposal but its last token when the target
verifies it; their cache of the proposal is dropped then, and all layers read it.
"""

from collections.abc import Sequence
from typing import cast

from specbench.algorithm.draft import Draft
from specbench.config.model import name_of
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import LayeredModel, LayeredSession, Part, Prompt, Session
from specbench.engine.weights.load import layers_of
from specbench.errors import UserError
from specbench.loading.model_loader import Say
from specbench.methods.build import DraftBuilder, DraftRequest
from specbench.methods.early_exit.config import EarlyExitConfig
from specbench.methods.model.draft import ModelDraftSession
from specbench.sampling import Sampling


class EarlyExitDraft:
    """The first `layers` decoder layers of `target`, 1 to all of them."""

    def __init__(self, target: LayeredModel, layers: int) -> None:
        self.target, self.part = target, Part(layers)

    @property
    def operations(self) -> float:
        return self.target.shallow(*self.part).operations

    def start(self, prompt: Prompt, sampling: Sampling) -> ModelDraftSession:
        """On a session of its own, where there is none of the target to share."""
        return self.start_on(self.target.start(prompt), prompt, sampling)

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> ModelDraftSession:
        shared = cast(LayeredSession, session).shallow(*self.part)
        return EarlyExitSession(self.target, shared, sampling, self.target.vocabulary_size)


class EarlyExitSession(ModelDraftSession):
    """The first layers at work in the target's own session, which selects the accepted path for them, too."""

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
