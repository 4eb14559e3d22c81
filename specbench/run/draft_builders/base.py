"""What making a draft is: the same three moments for every kind."""

from dataclasses import dataclass

import torch

from specbench.config import DraftConfig, RunConfig
from specbench.drafts import Draft
from specbench.models import Vocabulary
from specbench.models.eager import EagerModel
from specbench.run.model_loader import ModelLoader, Say


@dataclass(frozen=True)
class DraftRequest:
    """A draft to be made for the target of `run`. `key` is what the config calls it, for messages."""

    run: RunConfig
    draft: DraftConfig
    key: str
    vocabulary: Vocabulary  # the target's
    device: torch.device
    loader: ModelLoader


class DraftBuilder:
    """One draft in the making; `load` is called once, after `fit`."""

    needs_states = False  # whether the target must hand over what its head reads

    def __init__(self, wanted: DraftRequest) -> None:
        """Refuse what does not go together (UserError)."""
        self.wanted = wanted
        self.models: list[EagerModel] = []  # what `load` loaded besides the target

    def fit(self, say: Say) -> None:
        """Read what needs no weights."""

    def load(self, target: EagerModel, say: Say) -> Draft:
        """The draft, ready to start on prompts of the loaded `target`."""
        raise NotImplementedError
