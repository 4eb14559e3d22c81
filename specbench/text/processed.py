"""A model whose logits are processed as they leave its sessions: everything that reads them gets the processed ones.

So target and draft draw, accept, and are scored and proved with the same rows, at every position of a chain or a tree.
Steps that run without leaving the device (rollouts) are not available.

Shapes: L positions, V tokens of the vocabulary.
"""

from collections.abc import Sequence

from torch import Tensor

from specbench.config.schema import SamplingConfig
from specbench.engine.session import Model, Prompt, Session, Tokens, WrappedModel
from specbench.sampling import Sampling
from specbench.text.processors import Processors, processors
from specbench.text.vocabulary import Vocabulary
from specbench.theory.trees import ROOT


def drawing(sampling: SamplingConfig) -> Sampling:
    """The part of the config that adjusts each row by itself."""
    return Sampling(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)


def processed(model: Model, sampling: SamplingConfig, vocabulary: Vocabulary) -> Model:
    """`model` with its logits processed as `sampling` says; `model` itself if they are not processed.

    Raises UserError if the vocabulary does not support it.
    """
    found = processors(sampling, vocabulary, model.eos_ids)
    return model if found is None else ProcessedModel(model, found)


class ProcessedModel(WrappedModel):
    """`model` with processed logits over the tokenizer's vocabulary."""

    def __init__(self, model: Model, processors: Processors) -> None:
        super().__init__(model)
        self.processors, self.experts, self.network = processors, model.experts, model.network

    def start(self, prompt: Prompt) -> "ProcessedSession":
        return ProcessedSession(self.processors, self.model.start(prompt), prompt)


class ProcessedSession(Session):
    """The model's own session, and the tokens that it has read."""

    def __init__(self, processors: Processors, session: Session, prompt: Prompt) -> None:
        self.processors, self.session = processors, session
        self._prompt = len(prompt.prefix)
        self._tokens = list(prompt.prefix[: session.length])
        self._nodes: list[tuple[int, int]] = []  # of an open tree: token and parent

    @property
    def length(self) -> int:
        return self.session.length

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
        return self.session.states(start, stop)

    def tapped(self, start: int, stop: int) -> Tensor | None:
        return self.session.tapped(start, stop)

    def source_states(self, layer: int = -1) -> tuple[Tensor, Tensor] | None:
        return self.session.source_states(layer)

    def shallow(self, layers: int, skipped: frozenset[str] = frozenset()) -> Session:
        """The first layers, with raw logits: a draft, at every q of which the target's completions are right."""
        return self.session.shallow(layers, skipped)
