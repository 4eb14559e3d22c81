"""Drafts that are made of several drafts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from specbench.algorithm.draft import Draft
from specbench.config.draft import SeveralConfig
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.loading.model_loader import Say
from specbench.methods.build import DraftBuilder, DraftRequest, builder_for, needed_of_target

Several = TypeVar("Several", bound=SeveralConfig)


class SeveralBuilder(DraftBuilder[Several]):
    """The drafts that another is made of."""

    def __init__(self, request: DraftRequest[Several]) -> None:
        super().__init__(request)
        caches = self.draft.cache_dir
        self.parts = [
            builder_for(request.part(replace(part, cache_dir=part.cache_dir or caches), name, request.run))
            for name, part in self.draft.drafts.items()
        ]
        self.needs_states, self.taps, self.needs_prompt_states, self.pass_embeddings = needed_of_target(self.parts)

    def fit(self, say: Say) -> None:
        for part in self.parts:
            part.fit(say)

    def load_parts(self, target: EagerModel, say: Say) -> list[Draft]:
        drafts = [part.load(target, say) for part in self.parts]
        self.models += [model for part in self.parts for model in part.models]
        return drafts

    def require_room(self, prompts: Sequence[Prompt]) -> None:
        for part in self.parts:
            part.require_room(prompts)
