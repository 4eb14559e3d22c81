"""How a draft is built: the same three steps for every kind."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from specbench.algorithm.draft import Draft
from specbench.config.draft import DraftConfig, named
from specbench.config.model import ModelConfig
from specbench.config.paths import shipped
from specbench.config.schema import RunConfig
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.hub import hub_is_reachable
from specbench.loading import VocabularyChoice, require_room
from specbench.loading.model_loader import ModelLoader, Say, TargetOutputs
from specbench.text.vocabulary import Vocabulary

Kind = TypeVar("Kind", bound=DraftConfig)
Part = TypeVar("Part", bound=DraftConfig)


@dataclass(frozen=True)
class DraftRequest(Generic[Kind]):
    """A draft to be made for the target of `run`. `key` is what the config calls it, for messages."""

    run: RunConfig
    draft: Kind
    key: str
    vocabulary: Vocabulary  # the target's
    device: torch.device
    loader: ModelLoader

    def part(self, draft: Part, name: str, run: RunConfig) -> "DraftRequest[Part]":
        """The request of a draft that this one is made of, under the key `name`."""
        return DraftRequest(run, draft, f"{self.key}.{name}", self.vocabulary, self.device, self.loader)


class DraftBuilder(Generic[Kind]):
    """Builds one draft; `load` is called once, after `fit`."""

    needs_states = False  # whether the target must hand over what its head reads
    taps: tuple[int, ...] = ()  # and the states after so many of its decoder layers
    needs_prompt_states = False  # and states of the whole prompt, if the decoder reads it
    lookahead_embeddings: tuple[Path, ...] = ()  # folders of embeddings that the target must read

    def __init__(self, request: DraftRequest[Kind]) -> None:
        """Check the config. Raises UserError for an unsupported combination."""
        self.request = request
        self.draft = request.draft
        self.models: list[EagerModel] = []  # what `load` loaded besides the target
        self.vocabulary: VocabularyChoice | None = None  # of a model: how it drafts for the target's vocabulary

    def fit(self, say: Say) -> None:
        """Fit the draft on text, before weights are loaded."""

    def load(self, target: EagerModel, say: Say) -> Draft:
        """The draft, ready to start on prompts of the loaded `target`."""
        raise NotImplementedError

    def require_room(self, prompts: Sequence[Prompt]) -> None:
        """Raise UserError if a completion of these prompts would exceed the positions of one of the draft's models."""
        for model in self.models:
            require_room(self.request.run, model.longest, prompts)


def source_of(model: ModelConfig) -> tuple[str, dict[str, Any]]:
    """The folder or the repository of weights that were trained for a target, and the keywords that fix the latter."""
    if model.path is not None:
        return model.path, {}
    if model.hub is not None:
        return model.hub, {"revision": model.revision, **({} if hub_is_reachable() else {"local_files_only": True})}
    return str(shipped("models", model.shipped or "")), {}


def require_decoder(vocabulary: Vocabulary, key: str) -> None:
    """Raise UserError if a draft of the config's `key` cannot have a window."""
    if vocabulary.is_encoder_decoder:
        raise UserError(f"{key}: the target is an encoder-decoder, whose long text is its source; leave the window out")


def needed_of_target(builders: Iterable[DraftBuilder[Any]]) -> TargetOutputs:
    """The outputs and inputs that a target needs for all of these drafts."""
    making = list(builders)
    return TargetOutputs(
        states=any(one.needs_states for one in making),
        taps=tuple(sorted({depth for one in making for depth in one.taps})),
        of_prompt=any(one.needs_prompt_states for one in making),
        lookahead_embeddings=tuple(sorted({folder for one in making for folder in one.lookahead_embeddings})),
    )


def builder_for(request: DraftRequest[Any]) -> DraftBuilder[Any]:
    """The builder that the config of a draft's kind names."""
    kind: type[DraftBuilder[Any]] = named(request.draft.builder or "")
    return kind(request)
