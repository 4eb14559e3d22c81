"""The draft itself, and how it is made for a target."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.draft import Draft, DraftSession
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.loading.model_loader import Say
from specbench.methods.build import DraftBuilder
from specbench.sampling import Sampling, one_hot
from specbench_example.config import RepeatConfig


class RepeatDraft(Draft, DraftSession):
    """Proposes the last token again. It has no state, so it is its own session."""

    operations = 0.0  # arithmetic operations a drafted token

    def __init__(self, times: int, vocabulary_size: int, device: torch.device) -> None:
        self.times, self.vocabulary_size, self.device = times, vocabulary_size, device

    def start(self, prompt: Prompt, sampling: Sampling) -> "RepeatDraft":
        return self

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        return Proposal([tokens[-1]] * min(gamma, self.times))  # without q: each token was certain

    def rollback(self, length: int) -> None:
        """Nothing to do: no state."""

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        return one_hot(tokens[prefix_length - 1 : -1], self.vocabulary_size, self.device)


class RepeatBuilder(DraftBuilder[RepeatConfig]):
    """Makes the draft from its config."""

    def load(self, target: EagerModel, say: Say) -> Draft:
        return RepeatDraft(self.draft.times, self.request.vocabulary.size, self.request.device)
