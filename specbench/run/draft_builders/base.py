"""What making a draft is: the same three moments for every kind."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from specbench.config import DraftConfig, RunConfig
from specbench.drafts import Draft
from specbench.models import Vocabulary
from specbench.models.eager import EagerModel
from specbench.run.model_loader import ModelLoader, Say

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
    """One draft in the making; `load` is called once, after `fit`."""

    needs_states = False  # whether the target must hand over what its head reads

    def __init__(self, request: DraftRequest[Kind]) -> None:
        """Raises UserError at what does not go together."""
        self.request = request
        self.draft = request.draft
        self.models: list[EagerModel] = []  # what `load` loaded besides the target

    def fit(self, say: Say) -> None:
        """Read what needs no weights."""

    def load(self, target: EagerModel, say: Say) -> Draft:
        """The draft, ready to start on prompts of the loaded `target`."""
        raise NotImplementedError
