"""Builders of drafts that work inside the target: little to load, and many requirements on the target."""

from pathlib import Path
from typing import ClassVar

from specbench.config.draft_kinds import (
    EarlyExitConfig,
    LayerSkipConfig,
    LookaheadConfig,
    TrainedConfig,
)
from specbench.config.model import name_of
from specbench.config.paths import shipped
from specbench.config.ranges import MAX_GAMMA
from specbench.drafts import (
    BlockwiseDraft,
    Draft,
    EarlyExitDraft,
    HydraDraft,
    LayerSkipDraft,
    LookaheadDraft,
    MedusaDraft,
    ParallelDraft,
)
from specbench.drafts.medusa import LaterHeads, ReadingHeads
from specbench.errors import UserError
from specbench.models import Heads, HydraHeads, MedusaHeads
from specbench.models.eager import EagerModel
from specbench.models.engines import objection_to_reuse
from specbench.models.load import layers_of
from specbench.models.look_ahead import LookAheadEmbeddings
from specbench.models.published_hydra import published_hydra
from specbench.models.published_medusa import PublishedMedusa, published
from specbench.models.saved_heads import SavedHeads
from specbench.runs.draft_builders.base import DraftBuilder, DraftRequest, source_of
from specbench.runs.model_loader import Say


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
            draft = LayerSkipDraft(target, self.draft.skip, self.draft.reuse)
        except ValueError as error:
            given = ",".join(self.draft.skip)
            raise UserError(f"{self.request.key}.skip=[{given}]: {error}") from error
        return _checked(draft, self.request, say)


class LookaheadBuilder(DraftBuilder[LookaheadConfig]):
    """Builds `draft=lookahead`."""

    def load(self, target: EagerModel, say: Say) -> Draft:
        target.require_trees()
        draft = self.draft
        return LookaheadDraft(target, draft.window, draft.ngram, draft.guesses, self.request.device)


class HeadsBuilder(DraftBuilder[TrainedConfig]):
    """Heads on the target's last state, from a folder."""

    needs_states = True
    heads: ClassVar[type[SavedHeads]]
    counted: ClassVar[str] = "heads"  # what there is one of for each drafted token

    def __init__(self, request: DraftRequest[TrainedConfig]) -> None:
        super().__init__(request)
        draft = self.draft
        self.folder = Path(draft.path) if draft.path else shipped("models", draft.shipped or "")
        if draft.path is None and draft.hub is None and not self.folder.is_dir():
            raise UserError(
                f"{request.key}.path is not set: no {draft.kind} weights ship for "
                f"target={name_of(request.run.target)}; train some: specbench train recipe={draft.recipe} "
                f"distill.target=TARGET, and give {request.key}.path=FOLDER"
            )
        self.most = self.longest()

    def longest(self) -> int:
        """Tokens that the heads draft in a pass. Raises UserError where the folder has none."""
        hub, key = self.draft.hub, self.request.key
        if self.draft.path is None and hub is not None:
            raise UserError(f"{key}.hub={hub}: no published {self.draft.kind} heads that can be read; give {key}.path")
        number: int = self.heads.facts(self.folder, self.request.key)[self.counted]
        return number

    def load(self, target: EagerModel, say: Say) -> Draft:
        gamma, key = self.request.run.gamma, self.request.key
        if isinstance(gamma, int) and gamma > self.most:
            say(f"{key}: its {self.counted} draft {self.most} tokens a pass at most, not gamma={gamma}")
        return self.on(target, target.network.get_output_embeddings().weight.shape[0])

    def on(self, target: EagerModel, rows: int) -> Draft:
        """The draft; `rows` is how many logits the target's output projection has."""
        raise NotImplementedError


class ParallelBuilder(HeadsBuilder):
    """Builds `draft=pass`: look-ahead embeddings, which the target reads."""

    needs_states = False
    heads = LookAheadEmbeddings
    counted = "number"

    def __init__(self, request: DraftRequest[TrainedConfig]) -> None:
        super().__init__(request)
        target, kind = request.run.target, self.draft.kind
        if target.weights == "random":
            raise UserError(f"target.weights=random: draft={kind} is trained for a target's own weights; use another")
        for name in ("device_map", "tp_plan"):
            if getattr(target, name) is not None:
                raise UserError(f"target.{name}: not together with draft={kind}; leave it out")
        self.look_ahead = (self.folder,)

    def load(self, target: EagerModel, say: Say) -> Draft:
        target.require_trees()
        gamma, key = self.request.run.gamma, self.request.key
        if isinstance(gamma, int) and gamma > self.most:
            say(f"{key}: its look-ahead positions draft {self.most} tokens a pass at most, not gamma={gamma}")
        return ParallelDraft(target, target.look_ahead[self.folder], self.request.device)


class BlockwiseBuilder(HeadsBuilder):
    """Builds `draft=blockwise`."""

    heads = Heads

    def longest(self) -> int:
        return super().longest() - 1

    def on(self, target: EagerModel, rows: int) -> Draft:
        return BlockwiseDraft(target, Heads.load(self.folder, target.network, self.request.key), target.project, rows)


class MedusaBuilder(HeadsBuilder):
    """Our heads, or a checkpoint in Medusa's own layout, from a folder or the hub."""

    heads = MedusaHeads

    def longest(self) -> int:
        self.source, self.pinned = source_of(self.draft)
        self.is_published = published(self.source, self.pinned, self.request.key) is not None
        if self.is_published:
            return MAX_GAMMA  # the weights say how many heads there are
        return super().longest()

    def on(self, target: EagerModel, rows: int) -> Draft:
        key, network = self.request.key, target.network
        heads: LaterHeads
        if self.is_published:
            heads = PublishedMedusa.load(self.source, self.pinned, network, key)
        else:
            heads = MedusaHeads.load(self.folder, network, key)
        return MedusaDraft(target, heads, target.project, rows)


class HydraBuilder(HeadsBuilder):
    """Our heads, or a checkpoint in Hydra's own layout, from a folder or the hub."""

    heads = HydraHeads

    def longest(self) -> int:
        self.published = published_hydra(*source_of(self.draft), self.request.key)
        if self.published is None:
            return super().longest()
        self.needs_prompt_states = self.published.has_prefix
        return self.published.heads

    def on(self, target: EagerModel, rows: int) -> Draft:
        network = target.network
        heads: ReadingHeads
        if self.published is not None:
            heads = self.published.load(network)
        else:
            heads = HydraHeads.load(self.folder, network, self.request.key)
        return HydraDraft(target, heads, target.project, network.get_input_embeddings(), rows)
