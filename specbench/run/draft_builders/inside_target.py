"""Drafts that work inside the target, in the making: there is little to load, and much that must fit the target."""

from pathlib import Path

from specbench.config.draft_kinds import BlockwiseConfig, EarlyExitConfig, LayerSkipConfig, LookaheadConfig
from specbench.config.model import name_of
from specbench.config.paths import shipped
from specbench.drafts import BlockwiseDraft, Draft, EarlyExitDraft, LayerSkipDraft, LookaheadDraft
from specbench.errors import UserError
from specbench.models.eager import EagerModel
from specbench.models.heads import Heads
from specbench.models.load import layers_of
from specbench.run.draft_builders.base import DraftBuilder, DraftRequest
from specbench.run.model_loader import Say


class EarlyExitBuilder(DraftBuilder[EarlyExitConfig]):
    def __init__(self, request: DraftRequest[EarlyExitConfig]) -> None:
        super().__init__(request)
        target, layers = request.run.target, self.draft.layers
        most = layers_of(target, "target")
        if layers > most:
            raise UserError(f"{request.key}.layers={layers}: {name_of(target)} has {most} decoder layers")

    def load(self, target: EagerModel, say: Say) -> Draft:
        return EarlyExitDraft(target, self.draft.layers)


class LayerSkipBuilder(DraftBuilder[LayerSkipConfig]):
    def __init__(self, request: DraftRequest[LayerSkipConfig]) -> None:
        super().__init__(request)
        if self.draft.searches:
            raise UserError(
                f"{request.key}.skip=[auto]: `specbench recommend draft=layer-skip 'draft.skip=[auto]'` searches for "
                "the sublayers and prints them; give what it found"
            )

    def load(self, target: EagerModel, say: Say) -> Draft:
        try:
            return LayerSkipDraft(target, self.draft.skip)
        except ValueError as error:
            given = ",".join(self.draft.skip)
            raise UserError(f"{self.request.key}.skip=[{given}]: {error}") from error


class LookaheadBuilder(DraftBuilder[LookaheadConfig]):
    def load(self, target: EagerModel, say: Say) -> Draft:
        target.require_trees()
        draft = self.draft
        return LookaheadDraft(target, draft.window, draft.ngram, draft.guesses, self.request.device)


class BlockwiseBuilder(DraftBuilder[BlockwiseConfig]):
    needs_states = True

    def __init__(self, request: DraftRequest[BlockwiseConfig]) -> None:
        super().__init__(request)
        draft = self.draft
        self.folder = Path(draft.path) if draft.path else shipped("models", draft.shipped or "")
        self.most = Heads.facts(self.folder, request.key)["heads"] - 1

    def load(self, target: EagerModel, say: Say) -> Draft:
        gamma, key = self.request.run.gamma, self.request.key
        if isinstance(gamma, int) and gamma > self.most:
            say(f"{key}: {self.most + 1} heads draft {self.most} tokens a pass at most, not gamma={gamma}")
        heads = Heads.load(self.folder, target.network, key)
        rows = target.network.get_output_embeddings().weight.shape[0]
        return BlockwiseDraft(target, heads, target.project, rows)
