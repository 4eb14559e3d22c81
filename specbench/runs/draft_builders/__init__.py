"""A builder for each kind of draft: the constructor checks, `fit` reads text, `load` loads weights after the target.

A new kind is a class in `config/draft_kinds` that names its `DraftBuilder`; see CONTRIBUTING.md.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from specbench.config.draft import named
from specbench.config.draft_kinds import (
    CascadeConfig,
    HorizontalConfig,
    LookupConfig,
    MergedConfig,
    ModelDraftConfig,
    RandomConfig,
    SeveralConfig,
)
from specbench.drafts import CascadeDraft, Draft, HorizontalDraft, LookupDraft, MergedDraft, UniformDraft
from specbench.models import Prompt
from specbench.models.eager import EagerModel
from specbench.runs.compatibility import require_room
from specbench.runs.draft_builders.base import DraftBuilder, DraftRequest, needed_of_target
from specbench.runs.draft_builders.model import ModelBuilder
from specbench.runs.model_loader import Say


def builder_for(request: DraftRequest[Any]) -> DraftBuilder[Any]:
    """The builder that the config of a draft's kind names."""
    kind: type[DraftBuilder[Any]] = named(request.draft.builder or "")
    return kind(request)


class RandomBuilder(DraftBuilder[RandomConfig]):
    """Builds `draft=random`."""

    def load(self, target: EagerModel, say: Say) -> Draft:
        return UniformDraft(self.request.vocabulary.size, self.request.device)


class LookupBuilder(DraftBuilder[LookupConfig]):
    """Builds `draft=lookup`."""

    def load(self, target: EagerModel, say: Say) -> Draft:
        return LookupDraft(self.request.vocabulary.size, self.request.device, self.draft.match)


class CascadeBuilder(DraftBuilder[CascadeConfig]):
    """Builds `draft=cascade` from its two parts."""

    def __init__(self, request: DraftRequest[CascadeConfig]) -> None:
        super().__init__(request)
        draft, run, via, inner = self.draft, request.run, self.draft.via, self.draft.inner
        assert isinstance(via, ModelDraftConfig) and inner is not None
        self.middle = ModelBuilder(request.part(replace(via, vocabulary="same"), "via", run))
        inner = replace(inner, cache_dir=inner.cache_dir or draft.cache_dir)
        if inner.inside:  # the middle model, which is its target
            run = replace(run, target=via, gamma=draft.inner_gamma)
        self.inner = builder_for(request.part(inner, "inner", run))

    def fit(self, say: Say) -> None:
        self.inner.fit(say)

    def load(self, target: EagerModel, say: Say) -> Draft:
        middle = self.middle.load_model(say, needed_of_target([self.inner]))
        inner = self.inner.load(middle, say)
        self.models += [middle, *self.inner.models]
        trees = None if self.request.run.tree.shape == "none" else self.request.device
        return CascadeDraft(middle, inner, self.draft.inner_gamma, self.request.vocabulary.size, trees)

    def require_room(self, prompts: Sequence[Prompt]) -> None:
        require_room(self.request.run, self.models[0].longest, prompts)
        self.inner.require_room(prompts)


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
        self.needs_states, self.taps, self.needs_prompt_states, self.look_ahead = needed_of_target(self.parts)

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


class HorizontalBuilder(SeveralBuilder[HorizontalConfig]):
    """Builds `draft=horizontal` from its parts."""

    def load(self, target: EagerModel, say: Say) -> Draft:
        size, device = self.request.vocabulary.size, self.request.device
        return HorizontalDraft(self.load_parts(target, say), self.draft.lengths, size, target.eos_ids, device)


class MergedBuilder(SeveralBuilder[MergedConfig]):
    """Builds `draft=merged` from its parts."""

    def load(self, target: EagerModel, say: Say) -> Draft:
        return MergedDraft(self.load_parts(target, say))
