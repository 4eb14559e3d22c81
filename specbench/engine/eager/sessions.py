"""Sessions over a `transformers` module and its growing cache: one for each of the two families.

The encoder runs once per prompt. Rolling back cuts the decoder's self-attention cache only; the cross-attention cache
belongs to the source. `ShallowSession` reads ahead with the first layers, or some of the sublayers, over the cache of
another session.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import EncoderDecoderCache

from specbench.engine.beginnings import PROMPTS, Beginnings, read_prefix
from specbench.engine.cache_names import cache_argument
from specbench.engine.clock import RUNS
from specbench.engine.eager.cache import Arrangement, KeyValueLayer, RecurrentLayer, new_cache
from specbench.engine.eager.network_parts import LastRead, Part
from specbench.engine.layout import Layout, OpenTree
from specbench.engine.session import Prompt, Session, Tokens
from specbench.sampling import TokenChoice

if TYPE_CHECKING:
    from specbench.engine.eager.model import EagerModel


class NetworkSession(Session):
    """Shared parts of all sessions over a `transformers` network: a text, the tree of candidates after it, and states.

    Its first layers may be `ahead` of the others by so many tokens, and by the nodes of a tree, see `ShallowSession`.
    The next reading of all layers drops that. Below 0 they read again tokens that all layers have read, as in teacher
    forcing.
    """

    length: int = 0

    def __init__(self, model: EagerModel) -> None:
        self.model = model
        self.length = self.ahead = 0
        self.ahead_part: Part | None = None  # which layers are ahead
        self._tree, self._ahead_tree = OpenTree(), OpenTree()
        self._last = LastRead()

    def select(self, path: Sequence[int]) -> None:
        self.drop_ahead()
        self._keep_nodes(self.length, self._tree, path)
        self.length += len(path)
        self._last.select(list(path), self.length)

    def no_logits(self) -> Tensor:
        """The result of a session that is to read nothing."""
        return torch.empty(0, self.model.vocabulary_size, device=self.model.device, dtype=self.model.network.dtype)

    def states(self, start: int, stop: int) -> Tensor | None:
        return self._last.states(start, stop, self.model.tap_width)

    def tapped(self, start: int, stop: int) -> Tensor | None:
        return self._last.tapped(start, stop, self.model.tap_width)

    def shallow(self, layers: int, skipped: frozenset[str] = frozenset()) -> ShallowSession:
        """A session of the first `layers` layers, without the sublayers `skipped`, from here on; one at a time."""
        return ShallowSession(self, Part(layers, skipped))

    @abstractmethod
    def drop_ahead(self) -> None:
        """Drop the tokens that only the first layers have read, so that all layers have read equally many."""

    @abstractmethod
    def crop_ahead(self, tokens: int) -> None:
        """Forget the last `tokens` that only the first layers have read, and their tree."""

    @abstractmethod
    def read_ahead(self, part: Part, tokens: Tokens, parents: Sequence[int] | None) -> Tensor:
        """Logits [L, V] of these first layers, final norm and head, reading on in these layers' caches."""

    def rollout_ahead(
        self, part: Part, tokens: Sequence[int], choice: TokenChoice, steps: int, uniform_G: Tensor | None
    ) -> tuple[Tokens, Tensor | None] | None:
        """`Session.rollout` of these first layers, in their caches; None, with nothing read, if none is captured."""
        return None

    def select_ahead(self, part: Part, path: Sequence[int]) -> None:
        """Append the nodes of `path` to the tokens that only the first layers have read; forget their tree."""
        self._keep_nodes(self.length + self.ahead, self._ahead_tree, path, part)
        self.ahead += len(path)

    @abstractmethod
    def _keep_nodes(self, length: int, tree: OpenTree, path: Sequence[int], part: Part | None = None) -> None:
        """Keep only the nodes of `path` of `tree`, which follows `length` cached tokens, in the layers of `part`."""

    def _keep_states(self, logits_LV: Tensor, in_tree: bool) -> None:
        """Hold the states beside the logits of what was just read: tokens, or the newest nodes of the tree."""
        if in_tree:
            self._last.put_nodes(logits_LV, self.model.state_width, len(self._tree) - len(logits_LV))
        else:
            self._last.put(logits_LV, self.model.state_width, self.length)


class ShallowSession(Session):
    """Reads ahead of the whole session, which drops it and reads the tokens again in all layers. One at a time."""

    def __init__(self, whole: NetworkSession, part: Part) -> None:
        self.whole = whole
        self.part = part

    @property
    def length(self) -> int:
        return self.whole.length + self.whole.ahead

    def extend(self, tokens: Tokens, parents: Sequence[int] | None = None) -> Tensor:
        self._take_over()
        return self.whole.read_ahead(self.part, tokens, parents)

    def rollout(
        self, tokens: Sequence[int], choice: TokenChoice, steps: int, uniform_G: Tensor | None
    ) -> tuple[Tokens, Tensor | None] | None:
        self._take_over()
        return self.whole.rollout_ahead(self.part, tokens, choice, steps, uniform_G)

    def select(self, path: Sequence[int]) -> None:
        self._take_over()
        self.whole.select_ahead(self.part, path)

    def rollback(self, length: int) -> None:
        self._take_over()
        self.whole.crop_ahead(max(0, self.length - length))

    def _take_over(self) -> None:
        if self.whole.ahead_part != self.part:
            self.whole.drop_ahead()
            self.whole.ahead_part = self.part


class EagerSession(NetworkSession):
    """A session over a `transformers` cache that grows, for both families; its nodes of a tree are cached last."""

    def __init__(self, model: EagerModel, cache: Any) -> None:
        super().__init__(model)
        self._cache = cache

    def extend(self, tokens: Tokens, parents: Sequence[int] | None = None) -> Tensor:
        return self._read(tokens, parents) if len(tokens) else self.no_logits()

    def rollback(self, length: int) -> None:
        self.drop_ahead()
        surplus = max(0, self.length - length)
        if surplus or self._tree:
            self._drop(surplus + len(self._tree), surplus)
            self.length -= surplus
            self._tree.close()
            self._last.select([], self.length)

    def _drop(self, tokens: int, of_sequence: int) -> None:
        """Forget the last `tokens` cached, of which the first `of_sequence` are of the sequence, the rest of a tree."""
        # A negative count removes that many tokens in every supported release; the meaning of a positive one changed
        # within transformers 5.
        self._cache.crop(-tokens)

    def drop_ahead(self) -> None:
        assert self.ahead >= 0, "the first layers went back, and did not read again what the others have read"
        self.crop_ahead(self.ahead)

    def crop_ahead(self, tokens: int) -> None:
        if surplus := tokens + len(self._ahead_tree):
            assert self.ahead_part is not None
            for layer in self._caches(self.ahead_part):
                layer.crop(-surplus)
            self.ahead -= tokens
            self._ahead_tree.close()

    def read_ahead(self, part: Part, tokens: Tokens, parents: Sequence[int] | None) -> Tensor:
        self._tree.grow((), None)  # the tree of all layers is selected from before only the first layers read on
        model = self.model.shallow(*part)
        logits_LV = self._forward(model, tokens, parents, self.length + self.ahead, self._ahead_tree)
        if parents is None:
            self.ahead += len(tokens)
        return logits_LV

    def source_states(self, layer: int = -1) -> tuple[Tensor, Tensor] | None:
        return None

    def _caches(self, part: Part | None) -> list[Any]:
        """What the layers cache whose attention runs in `part`, or all layers: of the sequence, not of the source."""
        layers: list[Any] = getattr(self._cache, "self_attention_cache", self._cache).layers
        running = layers if part is None else [layers[number] for number in part.caching]
        return [layer for layer in running if isinstance(layer, KeyValueLayer | RecurrentLayer)]

    def _read(self, tokens: Tokens, parents: Sequence[int] | None = None, **options: Any) -> Tensor:
        self.drop_ahead()
        logits_LV = self._forward(self.model, tokens, parents, self.length, self._tree, **options)
        self._has_read(tokens, parents, logits_LV)
        return logits_LV

    def _has_read(self, tokens: Tokens, parents: Sequence[int] | None, logits_LV: Tensor) -> None:
        """Count what all layers have read, and hold its states."""
        if parents is None:
            self.length += len(tokens)
        self._keep_states(logits_LV, parents is not None)

    def _forward(
        self,
        model: EagerModel,
        tokens: Tokens,
        parents: Sequence[int] | None,
        length: int,
        tree: OpenTree,
        **options: Any,
    ) -> Tensor:
        """Logits [L, V] of `model`, this session's own or its first layers, after `length` tokens and `tree`."""
        if parents is not None:
            model.require_trees()
        tree.grow(tokens, parents)
        with torch.inference_mode(), ExitStack() as contexts:
            if (recurrence := model.recurrence) is not None:
                new = Arrangement.of(tree, len(tokens))
                contexts.enter_context(recurrence.reading(self._cache.layers, [new]))
                options |= model.placement.in_a_row(length + new.earlier, new.tokens)
            if (layout := self._layout(tree, length, len(tokens))) is not None:
                options |= contexts.enter_context(model.placement.applying(layout))
            options[cache_argument(model.network)] = self._cache
            output = RUNS.run(model.network, use_cache=True, **self._inputs(tokens), **options)
        if not tree.is_chain:
            model.require_trees()  # which is known for certain now
        logits_LV: Tensor = output.logits[0]
        return logits_LV

    def _layout(self, tree: OpenTree, length: int, count: int) -> Layout | None:
        """The layout of the newest `count` tokens or nodes after `length` tokens.

        None for a chain, which the module arranges itself, with kernels that need no mask.
        """
        recurrence = self.model.recurrence
        if tree.is_chain or (recurrence is not None and not recurrence.attends):
            return None
        return tree.layout(length, count, torch.arange(length + len(tree), device=self.model.device).unsqueeze(0))

    @abstractmethod
    def _inputs(self, tokens: Tokens) -> dict[str, object]:
        """The keyword arguments of the network that say what it reads."""

    @torch.inference_mode()
    def _keep_nodes(self, length: int, tree: OpenTree, path: Sequence[int], part: Part | None = None) -> None:
        count, nodes = len(tree), tree.select(path)
        for layer in self._caches(part):
            layer.keep(nodes, count)


class EncoderDecoderSession(EagerSession):
    """The encoder's output and the decoder's two caches."""

    def __init__(self, model: EagerModel, source: tuple[int, ...]) -> None:
        # Not DynamicCache(config=...): it counts encoder layers and breaks on a deeper decoder.
        super().__init__(model, EncoderDecoderCache(new_cache(), new_cache()))
        beginnings: Beginnings | None = model.beginnings
        if beginnings is not None and (kept := beginnings.of_source(source)) is not None:
            self._encoded = kept
            PROMPTS.copied += len(source)
            return
        with torch.inference_mode():
            self._encoded = model.network.get_encoder()(input_ids=model.ids(source))
        PROMPTS.read += len(source)
        if beginnings is not None and beginnings.repeats(source):
            beginnings.keep_source(source, self._encoded)  # which nothing writes into

    def source_states(self, layer: int = -1) -> tuple[Tensor, Tensor] | None:
        if cached := self._cache.cross_attention_cache.layers:
            return cached[layer].keys, cached[layer].values
        # Before the first token is read nothing is cached; a T5's layers make them so.
        attention = self.model.network.get_decoder().block[layer].layer[1].EncDecAttention
        with torch.inference_mode():
            keys, values = (
                part(self._encoded.last_hidden_state).unflatten(-1, (attention.n_heads, -1)).transpose(1, 2)
                for part in (attention.k, attention.v)
            )
        return keys, values

    def _inputs(self, tokens: Tokens) -> dict[str, object]:
        return {"decoder_input_ids": self.model.ids(tokens), "encoder_outputs": self._encoded}


class DecoderOnlySession(EagerSession):
    """The prompt is read at the start, so that decoding begins with one token, as in the other family."""

    def __init__(self, model: EagerModel, prompt: Prompt) -> None:
        super().__init__(model, self._empty(model))
        most = len(prompt.prefix) - 1 - bool(model.state_width)
        read_prefix(self, prompt, None if model.states_of_prompt else self.copies_from(model), most)

    @staticmethod
    def copies_from(model: EagerModel) -> Beginnings | None:
        """The beginnings that a session may copy."""
        beginnings: Beginnings | None = model.beginnings
        return beginnings

    def read_first(self, tokens: Sequence[int]) -> None:
        # The head's logits of the prompt are of no use, and large.
        options: dict[str, Any] = {} if self.model.states_of_prompt else {"logits_to_keep": 1}
        self._read(tokens, **options)

    @torch.inference_mode()
    def beginning(self, count: int) -> list[tuple[int, Tensor, Tensor]]:
        return [
            (number, layer.keys[..., :count, :].clone(), layer.values[..., :count, :].clone())
            for number, layer in enumerate(self._cache.layers)
            if layer.is_initialized  # others attend to another layer's keys
        ]

    lent = beginning

    @torch.inference_mode()
    def begin_with(self, kept: Sequence[tuple[int, Tensor, Tensor]], count: int) -> None:
        for number, keys, values in kept:
            self._cache.update(keys[..., :count, :], values[..., :count, :], number)
        self.length = count

    @staticmethod
    def _empty(model: EagerModel) -> Any:
        return new_cache() if model.recurrence is None else model.recurrence.cache()

    def _inputs(self, tokens: Tokens) -> dict[str, object]:
        return {"input_ids": self.model.ids(tokens)}
