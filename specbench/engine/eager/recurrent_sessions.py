"""Sessions of networks with recurrent layers, singly and as rows of one run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specbench.engine.beginnings import Beginnings
from specbench.engine.cache_names import cache_argument
from specbench.engine.eager.cache import Arrangement, RecurrentLayer, new_cache, rows_of
from specbench.engine.eager.sessions import DecoderOnlySession
from specbench.engine.layout import Layout, OpenTree
from specbench.engine.reads import Read
from specbench.engine.session import Prompt, Tokens

if TYPE_CHECKING:
    from specbench.engine.eager.model import EagerModel


class RecurrentSession(DecoderOnlySession):
    """A session of a network with recurrent layers, whose states can be dropped as far as they are held.

    Beyond that it reads its text again.
    """

    def __init__(self, model: EagerModel, prompt: Prompt) -> None:
        self._text: list[int] = []
        self._nodes: list[int] = []
        super().__init__(model, prompt)

    @staticmethod
    def copies_from(model: EagerModel) -> Beginnings | None:
        return None  # a state is of one length of the text

    @staticmethod
    @torch.inference_mode()
    def read_rows(model: EagerModel, reads: Sequence[Read]) -> list[Tensor]:
        """The results of `extend` for each of `reads`, of several sessions of `model`, from one run."""
        sessions = [cast(RecurrentSession, read.session) for read in reads]
        counts = [len(read.tokens) for read in reads]
        for session, (_, tokens, parents) in zip(sessions, reads, strict=True):
            session.drop_ahead()
            if parents is not None:
                model.require_trees()
            session._tree.grow(tokens, parents)
        new = [Arrangement.of(one._tree, count) for one, count in zip(sessions, counts, strict=True)]
        most = max(counts)
        slots = max(one.length + of.earlier + of.tokens for one, of in zip(sessions, new, strict=True))
        numbers_1C = torch.arange(slots, device=model.device).unsqueeze(0)
        layout = Layout.of_rows(
            [
                one._tree.layout(one.length, count, numbers_1C).filled(most)
                for one, count in zip(sessions, counts, strict=True)
            ]
        )
        recurrence = model.recurrence
        assert recurrence is not None
        cache = new_cache()
        cache.layers = [
            rows_of(same, new, slots) for same in zip(*(one._cache.layers for one in sessions), strict=True)
        ]
        ids = pad_sequence([model.ids(read.tokens)[0] for read in reads], batch_first=True)
        with ExitStack() as contexts:
            contexts.enter_context(recurrence.reading(cache.layers, new))
            options = contexts.enter_context(model.placement.applying(layout)) if recurrence.attends else {}
            output = model.network(input_ids=ids, use_cache=True, **(options | {cache_argument(model.network): cache}))
        found = [logits_LV[:count] for logits_LV, count in zip(output.logits, counts, strict=True)]
        for session, (_, tokens, parents), logits_LV in zip(sessions, reads, found, strict=True):
            session._has_read(tokens, parents, logits_LV)
        return found

    def bytes_of(self, tokens: int) -> int:
        """Maximum bytes that its layers hold after so many tokens; one was read so far."""
        return sum(layer.bytes_of(tokens) for layer in self._caches(None))

    def select(self, path: Sequence[int]) -> None:
        super().select(path)
        self._text += [self._nodes[node] for node in path]
        self._nodes.clear()

    def rollback(self, length: int) -> None:
        super().rollback(length)
        self._nodes.clear()
        del self._text[self.length :]

    def _has_read(self, tokens: Tokens, parents: Sequence[int] | None, logits_LV: Tensor) -> None:
        super()._has_read(tokens, parents, logits_LV)
        read = tokens.tolist() if isinstance(tokens, Tensor) else tokens
        (self._text if parents is None else self._nodes).extend(read)

    def _drop(self, tokens: int, of_sequence: int) -> None:
        held = [layer.held for layer in self._cache.layers if isinstance(layer, RecurrentLayer)]
        if tokens <= min(held, default=tokens):
            for layer in self._caches(None):
                layer.crop(-tokens)
            return
        self._cache = self._empty(self.model)
        if left := self._text[: self.length - of_sequence]:
            self._forward(self.model, left, None, 0, OpenTree(), logits_to_keep=1)
