"""A model whose logits are processed as they leave its sessions: everything that reads them gets the processed ones.

So target and draft draw, accept, and are scored and proved with the same rows, at every position of a chain or a tree.
On a device the biases and penalties of a chain are one function of tensors, which an engine may capture, and the counts
of tokens stay there. Steps that run without leaving the device (rollouts) are not available.

Shapes: L positions, V tokens of the vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.config.schema import SamplingConfig
from specbench.engine.session import Model, Prompt, Repeat, Session, Tokens, WrappedModel
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
        # On a CPU a row needs a few of its numbers, and no launches.
        self.counts_on_device = processors.weighs and model.device.type != "cpu"

    def start(self, prompt: Prompt) -> "ProcessedSession":
        session = self.model.start(prompt)
        if self.counts_on_device:
            return CountedSession(self.processors, session, prompt, self.device, self.repeat)
        return ProcessedSession(self.processors, session, prompt)


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
            sequences = self._appended(ids)
        else:
            first = len(self._nodes)
            self._nodes += zip(ids, parents, strict=True)
            sequences = [[*self._tokens, *self._path(node)] for node in range(first, len(self._nodes))]
        return self.processors.processed(logits_LV, sequences, self._prompt)

    def _appended(self, ids: Sequence[int]) -> list[list[int]]:
        """All tokens up to each of the new ones, `ids`, which are part of the sequence from now on."""
        before = len(self._tokens)
        self._tokens += ids
        return [self._tokens[: before + count] for count in range(1, len(ids) + 1)]

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


MOST_OF_A_PASS = 32  # tokens of a run that is captured; each length has its graph, and a prompt is read once


class CountedSession(ProcessedSession):
    """A `ProcessedSession` whose biases and penalties are computed on the device, of all tokens of a chain at once.

    After a run it has the counts of tokens after each token of it, so that the next pass starts from those after its
    last accepted token, whichever that is. The rows of a tree are processed one by one.
    """

    def __init__(
        self, processors: Processors, session: Session, prompt: Prompt, device: torch.device, repeat: Repeat
    ) -> None:
        super().__init__(processors, session, prompt)
        self._repeat, self._device = repeat, device
        self._weighing, self._biases_V = processors.weighing(), processors.biases(device)
        self._first = self._known = 0  # tokens before the last run, and those up to which its counts are right
        self._counts_2LV: Tensor | None = None  # after each token of that run

    def extend(self, tokens: Tokens, parents: Sequence[int] | None = None) -> Tensor:
        if parents is not None or self._nodes or not len(tokens):
            return super().extend(tokens, parents)
        logits_LV = self.session.extend(tokens)
        ids = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
        before, counts_2V = len(self._tokens), self._counts()
        inputs = (logits_LV, self._marked(ids, before), counts_2V, self._biases_V)
        short = len(ids) <= MOST_OF_A_PASS
        found_3LV = self._repeat(self._weighing, *inputs) if short else self._weighing(*inputs)
        sequences, rows_LV = self._appended(ids), found_3LV[0]
        self._first, self._known, self._counts_2LV = before, len(self._tokens), found_3LV[1:]
        if self.processors.masks:
            rows_LV = rows_LV.clone()  # an engine's result cannot be changed outside of its inference mode
            self.processors.mask(rows_LV, sequences, self._prompt)
        return rows_LV

    def select(self, path: Sequence[int]) -> None:
        self._known = min(self._known, len(self._tokens))
        super().select(path)

    def rollback(self, length: int) -> None:
        super().rollback(length)
        self._known = min(self._known, len(self._tokens))

    def _counts(self) -> Tensor:
        """How often each token was read [2, V]: in the prompt and the completion, and only in the completion."""
        before = len(self._tokens)
        if self._counts_2LV is not None and self._first < before <= self._known:
            return self._counts_2LV[:, before - self._first - 1]
        marked_2L = self._marked(self._tokens, 0)
        counts_2X = torch.zeros(2, self._weighing.size + 1, device=self._device)
        return counts_2X.scatter_add_(1, marked_2L, torch.ones_like(marked_2L, dtype=counts_2X.dtype))[:, :-1]

    def _marked(self, ids: Sequence[int], before: int) -> Tensor:
        """`ids`, which follow `before` tokens, and the completion's among them, as `Weighing` reads them."""
        size = self._weighing.size
        known = [token if token < size else size for token in ids]  # ids past the vocabulary are no text
        own = [token if place >= self._prompt else size for place, token in enumerate(known, before)]
        return torch.tensor([known, own], dtype=torch.long, device=self._device)
