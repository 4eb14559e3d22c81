"""A model whose logits are processed as they leave its sessions: everything that reads them gets the processed ones.

So target and draft draw, accept, and are scored and proved with the same rows, at every position of a chain or a tree.
Steps that run without leaving the device (rollouts) are not available.

Shapes: L positions, V tokens of the vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.config.schema import SamplingConfig
from specbench.engine.processors import Processors, processors
from specbench.engine.session import Model, Prompt, Session, Tokens, get_ready
from specbench.engine.vocabulary import Vocabulary
from specbench.sampling import Sampling
from specbench.theory.trees import ROOT


def drawing(sampling: SamplingConfig) -> Sampling:
    """The part of the config that adjusts each row by itself."""
    return Sampling(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)


def processed(model: Model, sampling: SamplingConfig, vocabulary: Vocabulary) -> Model:
    """`model` with its logits processed as `sampling` says; `model` itself where they are not.

    Raises:
        UserError: the vocabulary does not support it.
    """
    found = processors(sampling, vocabulary, model.eos_ids)
    return model if found is None else ProcessedModel(model, found)


class ProcessedModel:
    """`model` with processed logits, which are those of the tokenizer's vocabulary."""

    def __init__(self, model: Model, processors: Processors) -> None:
        self.model, self.processors = model, processors
        self.vocabulary_size, self.eos_ids, self.longest = model.vocabulary_size, model.eos_ids, model.longest
        self.operations, self.now = model.operations, model.now
        self.experts = getattr(model, "experts", None)
        self.mark = getattr(model, "mark", None)
        self.device: torch.device = getattr(model, "device", torch.device("cpu"))

    @property
    def network(self) -> Any:
        """The `transformers` module, of an engine."""
        return getattr(self.model, "network")  # noqa: B009 a Model need not have one

    def start(self, prompt: Prompt) -> "ProcessedSession":
        return ProcessedSession(self.processors, self.model.start(prompt), prompt)

    def get_ready(self, prompt: Prompt, tokens: int) -> None:
        """Capture what decoding will need, where the model captures its steps."""
        get_ready(self.model, prompt, tokens)


class ProcessedSession:
    """The model's own session, and the tokens that it has read."""

    def __init__(self, processors: Processors, session: Any, prompt: Prompt) -> None:
        self.processors, self.session = processors, session
        self._prompt = len(prompt.prefix)
        self._tokens = list(prompt.prefix[: session.length])
        self._nodes: list[tuple[int, int]] = []  # of an open tree: token and parent

    @property
    def length(self) -> int:
        found: int = self.session.length
        return found

    def extend(self, tokens: Tokens, parents: Sequence[int] | None = None) -> Tensor:
        logits_LV = self.session.extend(tokens, parents)
        ids = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
        if parents is None:
            before = len(self._tokens)
            self._tokens += ids
            sequences = [self._tokens[: before + count] for count in range(1, len(ids) + 1)]
        else:
            first = len(self._nodes)
            self._nodes += zip(ids, parents, strict=True)
            sequences = [[*self._tokens, *self._path(node)] for node in range(first, len(self._nodes))]
        return self.processors.processed(logits_LV, sequences, self._prompt)

    def _path(self, node: int) -> list[int]:
        """The tokens from the root of the open tree to `node`."""
        found = list[int]()
        while node != ROOT:
            token, node = self._nodes[node]
            found.append(token)
        return found[::-1]

    def select(self, path: Sequence[int]) -> None:
        self.session.select(path)
        self._tokens += [self._nodes[node][0] for node in path]
        self._nodes = []

    def rollback(self, length: int) -> None:
        self.session.rollback(length)
        del self._tokens[length:]
        self._nodes = []

    # What drafts inside the target read: states and layers of the model itself.

    def states(self, start: int, stop: int) -> Tensor | None:
        found: Tensor | None = self.session.states(start, stop)
        return found

    def tapped(self, start: int, stop: int) -> Tensor | None:
        found: Tensor | None = self.session.tapped(start, stop)
        return found

    def source_states(self, layer: int = -1) -> tuple[Tensor, Tensor] | None:
        found: tuple[Tensor, Tensor] | None = self.session.source_states(layer)
        return found

    def shallow(self, layers: int, skipped: frozenset[str] = frozenset()) -> Session:
        """Its logits are not processed: a draft of its own, at every q of which the target's completions are right."""
        found: Session = self.session.shallow(layers, skipped)
        return found
