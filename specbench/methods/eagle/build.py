"""The builder of EAGLE and EAGLE-3."""

from pathlib import Path

from specbench.algorithm.draft import Draft
from specbench.config.model import name_of, place_of
from specbench.config.paths import training_command
from specbench.engine.eager.model import EagerModel
from specbench.engine.weights.load import layers_of, shape_of
from specbench.errors import UserError
from specbench.loading.model_loader import Say
from specbench.methods.build import DraftBuilder, DraftRequest, source_of
from specbench.methods.eagle.config import EagleConfig
from specbench.methods.eagle.draft import EagleDraft
from specbench.methods.eagle.network import OURS, load_eagle, read_eagle
from specbench.methods.eagle.published import load_published_eagle, published_eagle


class EagleBuilder(DraftBuilder[EagleConfig]):
    """Weights of our own recipes, in a folder or shipped, or a published checkpoint, in a folder or on the hub."""

    needs_states = needs_prompt_states = True

    def __init__(self, request: DraftRequest[EagleConfig]) -> None:
        super().__init__(request)
        draft, key, target = self.draft, request.key, request.run.target
        self.source, pinned = source_of(draft)
        if draft.path is None and draft.hub is None and not Path(self.source).is_dir():
            raise UserError(
                f"{key}.path is not set: no {draft.kind} weights ship for target={name_of(target)}; train some: "
                f"{training_command(draft.kind, place_of(target))}, and give {key}.path=FOLDER, or "
                f"{key}.hub=OWNER/NAME of a published checkpoint"
            )
        self.published = published_eagle(self.source, pinned, key, OURS)
        if self.published is None and draft.hub is not None and draft.path is None:
            raise UserError(f"{key}.hub={draft.hub}: its config.json is none of an EAGLE checkpoint")
        if self.published is not None:
            kind = self.published.kind
        else:
            facts = read_eagle(Path(self.source), key, draft.recipe)
            kind, self.taps = facts.shape.kind, facts.shape.taps
        if kind != draft.kind:
            where = f"{key}.path" if draft.path or draft.hub is None else f"{key}.hub"
            raise UserError(f"{where}={self.source}: these weights are of draft={kind}; use that draft")
        if self.published is not None:
            self.published.require_fits(shape_of(target, "target"))
            self.taps = self.published.taps(layers_of(target, "target"))

    def load(self, target: EagerModel, say: Say) -> Draft:
        if self.published is not None:
            eagle = load_published_eagle(self.published, target.network, self.taps)
        else:
            eagle = load_eagle(Path(self.source), target.network, self.request.key)
        return EagleDraft(target, eagle, target.tap_depths)
