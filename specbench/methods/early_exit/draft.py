"""Early exit: the target's own first layers, then its final norm and head, as the draft.

Elhoushi et al. 2024, "LayerSkip", train a target to exit early. Weights, encoded source and cache are the target's, so
nothing is loaded or stored twice. The draft's layers have read all of a proposal but its last token when the target
verifies it. With `reuse` verification begins with the states after them (their section 3.3); otherwise their cache of
the proposal is dropped, and all layers read it.
"""

from collections.abc import Sequence
from typing import cast

from specbench.algorithm.draft import Draft
from specbench.config.model import name_of
from specbench.engine.choice import objection_to_reuse
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import LayeredModel, LayeredSession, Part, Prompt, Session
from specbench.engine.weights.load import layers_of
from specbench.errors import UserError
from specbench.loading.model_loader import Say
from specbench.methods.build import DraftBuilder, DraftRequest
from specbench.methods.early_exit.config import EarlyExitConfig
from specbench.methods.layer_skip.config import LayerSkipConfig
from specbench.methods.model.draft import ModelDraftSession
from specbench.sampling import Sampling


class EarlyExitDraft:
    """The first `layers` decoder layers of `target`, 1 to all of them.

    `reuse`: verification reuses the states of the first layers, if the target does not object.
    """

    def __init__(self, target: LayeredModel, layers: int, reuse: bool = False) -> None:
        self._set(target, Part(layers), reuse)

    def _set(self, target: LayeredModel, part: Part, reuse: bool) -> None:
        self.target, self.part = target, part
        self.reuse = reuse and target.objection_to_split(part) is None

    @property
    def operations(self) -> float:
        part = self.part
        return (self.target.split(part).drafting if self.reuse else self.target.shallow(*part)).operations

    def start(self, prompt: Prompt, sampling: Sampling) -> ModelDraftSession:
        """On a session of its own, where there is none of the target to share."""
        return self.start_on(self.target.start(prompt), prompt, sampling)

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> ModelDraftSession:
        shared = cast(LayeredSession, session).shallow(*self.part, reuse=self.reuse)
        return EarlyExitSession(self.target, shared, sampling, self.target.vocabulary_size)


class EarlyExitSession(ModelDraftSession):
    """The first layers at work in the target's own session, which selects the accepted path for them, too."""

    def select(self, path: Sequence[int]) -> None:
        """The target has read the tree again, and selected."""


def _checked(
    draft: EarlyExitDraft, request: DraftRequest[EarlyExitConfig] | DraftRequest[LayerSkipConfig], say: Say
) -> EarlyExitDraft:
    """`draft`, which reuses states only where that was tried and gives the target's own logits."""
    if request.draft.reuse and (reason := objection_to_reuse(draft.target, draft.part)) is not None:
        draft.reuse = False
        say(f"{request.key}.reuse: not here, verification computes all layers: {reason}")
    return draft


class EarlyExitBuilder(DraftBuilder[EarlyExitConfig]):
    """Builds `draft=early-exit`."""

    def __init__(self, request: DraftRequest[EarlyExitConfig]) -> None:
        super().__init__(request)
        target, layers = request.run.target, self.draft.layers
        most = layers_of(target, "target")
        if layers > most:
            raise UserError(f"{request.key}.layers={layers}: {name_of(target)} has {most} decoder layers")

    def load(self, target: EagerModel, say: Say) -> Draft:
        return _checked(EarlyExitDraft(target, self.draft.layers, self.draft.reuse), self.request, say)
