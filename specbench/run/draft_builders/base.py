"""What making a draft is: the same three moments for every kind."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from specbench.config import DraftConfig, RunConfig
from specbench.drafts import Draft
from specbench.models import Vocabulary
from specbench.models.eager import EagerModel

Say = Callable[[str], None]


@dataclass(frozen=True)
class DraftRequest:
    """A draft to be made for the target of `run`. `key` is what the config calls it, for messages."""

    run: RunConfig
    draft: DraftConfig
    key: str
    vocabulary: Vocabulary  # the target's
    device: torch.device


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


def report_fallback(model: EagerModel, key: str, say: Say) -> None:
    """Tell why `engine=auto` came to the slowest engine, if it did."""
    if model.fell_back is not None:
        say(f"{key}: engine=auto came to eager, {model.fell_back}")
