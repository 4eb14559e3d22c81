"""The random draft of the paper's opening: every token equally likely."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.draft import Draft
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.loading.model_loader import Say
from specbench.methods.build import DraftBuilder
from specbench.methods.random.config import RandomConfig
from specbench.sampling import Sampling


class UniformDraft:
    """q(x) = 1/V at every position and under every sampling setting.

    All entries are equal, so argmax, top-k and nucleus change nothing.
    """

    operations = 0.0

    def __init__(self, vocabulary_size: int, device: torch.device) -> None:
        self.vocabulary_size = vocabulary_size
        self.device = device

    def start(self, prompt: Prompt, sampling: Sampling) -> "UniformDraft":
        return self

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        drawn_G = torch.randint(self.vocabulary_size, (gamma,), generator=generator, device=self.device)
        return Proposal(drawn_G.tolist(), self._rows(gamma))

    def rollback(self, length: int) -> None:
        """Nothing to do: no state."""

    def score(self, tokens: Sequence[int], prefix_length: int) -> Tensor:
        return self._rows(len(tokens) - prefix_length)

    def _rows(self, count: int) -> Tensor:
        row_V = torch.full((self.vocabulary_size,), 1 / self.vocabulary_size, device=self.device)
        return row_V.expand(count, -1)


class RandomBuilder(DraftBuilder[RandomConfig]):
    """Builds `draft=random`."""

    def load(self, target: EagerModel, say: Say) -> Draft:
        return UniformDraft(self.request.vocabulary.size, self.request.device)
