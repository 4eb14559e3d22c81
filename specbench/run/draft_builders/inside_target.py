"""Drafts that work inside the target, in the making: there is little to load, and much that must fit the target."""

from pathlib import Path

from specbench.config.paths import shipped
from specbench.drafts import BlockwiseDraft, Draft, EarlyExitDraft
from specbench.errors import UserError
from specbench.models.eager import EagerModel
from specbench.models.heads import load_heads, read_facts
from specbench.models.load import layers_of, name_of
from specbench.run.draft_builders.base import DraftBuilder, DraftRequest
from specbench.run.model_loader import Say


class EarlyExitBuilder(DraftBuilder):
    def __init__(self, wanted: DraftRequest) -> None:
        super().__init__(wanted)
        target, layers = wanted.run.target, wanted.draft.layers
        most = layers_of(target, "target")
        if layers > most:
            raise UserError(f"{wanted.key}.layers={layers}: {name_of(target)} has {most} decoder layers")

    def load(self, target: EagerModel, say: Say) -> Draft:
        return EarlyExitDraft(target, self.wanted.draft.layers)


class BlockwiseBuilder(DraftBuilder):
    needs_states = True

    def __init__(self, wanted: DraftRequest) -> None:
        super().__init__(wanted)
        draft = wanted.draft
        self.folder = Path(draft.path) if draft.path else shipped("models", draft.shipped or "")
        self.most = read_facts(self.folder, wanted.key)["heads"] - 1

    def load(self, target: EagerModel, say: Say) -> Draft:
        gamma = self.wanted.run.gamma
        if isinstance(gamma, int) and gamma > self.most:
            say(f"{self.wanted.key}: {self.most + 1} heads draft {self.most} tokens a pass at most, not gamma={gamma}")
        heads = load_heads(self.folder, target.network, self.wanted.key)
        rows = target.network.get_output_embeddings().weight.shape[0]
        return BlockwiseDraft(target, heads, target.project, rows)
