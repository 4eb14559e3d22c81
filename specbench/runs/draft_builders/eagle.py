"""EAGLE and EAGLE-3, in the making."""

from pathlib import Path

from specbench.config.draft_kinds import EagleConfig
from specbench.config.model import name_of
from specbench.config.paths import shipped
from specbench.drafts import Draft, EagleDraft
from specbench.errors import UserError
from specbench.models.eager import EagerModel
from specbench.models.eagle import load_eagle, read_eagle
from specbench.runs.draft_builders.base import DraftBuilder, DraftRequest
from specbench.runs.model_loader import Say


class EagleBuilder(DraftBuilder[EagleConfig]):
    """Without a folder the weights are those that ship for the target."""

    needs_states = needs_prompt_states = True

    def __init__(self, request: DraftRequest[EagleConfig]) -> None:
        super().__init__(request)
        draft, key, target = self.draft, request.key, request.run.target
        self.folder = Path(draft.path) if draft.path else shipped("models", draft.shipped or "")
        if draft.path is None and not self.folder.is_dir():
            raise UserError(
                f"{key}.path is not set: no {draft.kind} weights ship for target={name_of(target)}; train some: "
                f"specbench train recipe={draft.kind} distill.target=TARGET, and give {key}.path=FOLDER"
            )
        facts = read_eagle(self.folder, key)
        if facts.shape.kind != draft.kind:
            raise UserError(f"{key}.path={self.folder}: these weights are of draft={facts.shape.kind}; use that draft")
        self.taps = facts.shape.taps

    def load(self, target: EagerModel, say: Say) -> Draft:
        eagle = load_eagle(self.folder, target.network, self.request.key)
        return EagleDraft(target, eagle, target.tap_depths)
