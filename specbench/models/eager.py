"""Sessions over `transformers` models run eagerly with a growing cache: one for each of the two families.

The encoder runs once a prompt. Rolling back cuts the decoder's self-attention cache only; the cross-attention cache
belongs to the source and stays.
"""

import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache

from specbench.models.base import LayeredSession, Prompt
from specbench.models.exits import first_layers
from specbench.models.hidden import LastRead
from specbench.models.shallow import ShallowSession

# Keys and values of cross-attention, as T5 and the families after BART name them.
ONCE_A_SOURCE = re.compile(r"(EncDecAttention|encoder_attn)\.(k|v|k_proj|v_proj)$")


class EagerModel:
    """A `transformers` model with a language head, ready to start sessions."""

    engine = "eager"
    warmup_s = 0.0  # seconds spent on making the engine ready
    fell_back: str | None = None  # why 'auto' came to this
    state_width = 0  # columns behind the logits that are what the head read; see hidden.hand_over

    def __init__(self, network: Any, vocabulary_size: int, eos_ids: frozenset[int]) -> None:
        self.network = network.eval()
        self.vocabulary_size = vocabulary_size
        self.eos_ids = eos_ids
        self.device: torch.device = network.device
        self.is_encoder_decoder: bool = network.config.is_encoder_decoder
        # Learned positions end here. Relative ones (T5) do not end; rotary ones are trusted to their stated length.
        self.longest: int | None = getattr(network.config, "max_position_embeddings", None)
        self.operations = 2.0 * _weights_per_step(network)
        self._shallow: dict[int, EagerModel] = {}
        # The clock itself where there is nothing to wait for: decoding looks at it several times a pass.
        # Not a method of its own: a model that holds itself is freed late, and a sweep frees models to load others.
        on_cuda = self.device.type == "cuda"
        self.now: Callable[[], float] = partial(_now_on_cuda, self.device) if on_cuda else time.perf_counter

    def shallow(self, layers: int) -> "EagerModel":
        """The first `layers` decoder layers with the final norm and head: the same weights, made once."""
        if layers not in self._shallow:
            self._shallow[layers] = self._alike(first_layers(self.network, layers))
        return self._shallow[layers]

    def project(self, states_ND: Tensor) -> Tensor:
        """Logits [N, V] of the head alone, of a network that hands over what it reads."""
        logits_NV: Tensor = self.network.get_output_embeddings().head(states_ND)
        return logits_NV

    def _alike(self, network: Any) -> "EagerModel":
        """`network`, which has some of the same weights, run by the same engine."""
        return EagerModel(network, self.vocabulary_size, self.eos_ids)

    def start(self, prompt: Prompt) -> LayeredSession:
        if self.is_encoder_decoder:
            return EncoderDecoderSession(self, prompt.source)
        return DecoderOnlySession(self, prompt.prefix[:-1])

    def ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor([tokens], device=self.device)


def _now_on_cuda(device: torch.device) -> float:
    torch.cuda.synchronize(device)
    return time.perf_counter()


def _weights_per_step(network: Any) -> int:
    """Weights that one decoding step multiplies with. Left out are the encoder's, those that are only looked up
    (embeddings of tokens and of positions), and the keys and values of cross-attention, computed once a source."""
    left_out = [module for module in network.modules() if isinstance(module, nn.Embedding)]
    if network.config.is_encoder_decoder:
        left_out.append(network.get_encoder())
        left_out += [module for name, module in network.get_decoder().named_modules() if ONCE_A_SOURCE.search(name)]
    skipped = {id(parameter) for module in left_out for parameter in module.parameters()}
    head = network.get_output_embeddings().weight
    counted = {id(p): p.numel() for p in network.parameters() if id(p) not in skipped}
    return sum((counted | {id(head): head.numel()}).values())


class _CachedSession:
    """What both families share: a self-attention cache that is as long as the tokens read. Its first layers may be
    ahead for a while, see `ShallowSession`."""

    def __init__(self, model: EagerModel, cache: Any) -> None:
        self.model = model
        self.length = 0
        self.ahead = self.ahead_layers = 0
        self._last = LastRead()
        self._cache = cache

    def extend(self, tokens: Sequence[int]) -> Tensor:
        return self._read(tokens)

    def rollback(self, length: int) -> None:
        self.level()
        surplus = self.length - length
        if surplus > 0:
            # A negative count removes that many tokens in every supported release; the meaning of a positive
            # one changed within transformers 5.
            self._cache.crop(-surplus)
            self.length = length

    def shallow(self, layers: int) -> ShallowSession:
        """A session of the first `layers` layers that goes on from where this one is; one at a time."""
        return ShallowSession(self, layers)

    def level(self) -> None:
        assert self.ahead >= 0, "the first layers went back, and did not read again what the others have read"
        self.crop_ahead(self.ahead)

    def crop_ahead(self, tokens: int) -> None:
        if tokens:
            for layer in getattr(self._cache, "self_attention_cache", self._cache).layers[: self.ahead_layers]:
                layer.crop(-tokens)
            self.ahead -= tokens

    def read_ahead(self, layers: int, tokens: Sequence[int]) -> Tensor:
        logits_LV = self._forward(self.model.shallow(layers).network, tokens)
        self.ahead += len(tokens)
        return logits_LV

    def _read(self, tokens: Sequence[int], **options: Any) -> Tensor:
        self.level()
        logits_LV = self._forward(self.model.network, tokens, **options)
        self.length += len(tokens)
        self._last.keep(logits_LV, self.model.state_width, self.length)
        return logits_LV

    def states(self, start: int, stop: int) -> Tensor | None:
        return self._last.states(start, stop)

    def _forward(self, network: Any, tokens: Sequence[int], **options: Any) -> Tensor:
        """Logits [L, V] of `network` reading on, which is this session's own or its first layers."""
        with torch.inference_mode():
            output = network(past_key_values=self._cache, use_cache=True, **self._inputs(tokens), **options)
        logits_LV: Tensor = output.logits[0]
        return logits_LV

    def _inputs(self, tokens: Sequence[int]) -> dict[str, Any]:
        raise NotImplementedError


class EncoderDecoderSession(_CachedSession):
    """The encoder's output and the decoder's two caches."""

    def __init__(self, model: EagerModel, source: Sequence[int]) -> None:
        # Not DynamicCache(config=...): it counts encoder layers and breaks on a deeper decoder.
        super().__init__(model, EncoderDecoderCache(DynamicCache(), DynamicCache()))
        with torch.inference_mode():
            self._encoded = model.network.get_encoder()(input_ids=model.ids(source))

    def _inputs(self, tokens: Sequence[int]) -> dict[str, Any]:
        return {"decoder_input_ids": self.model.ids(tokens), "encoder_outputs": self._encoded}


class DecoderOnlySession(_CachedSession):
    """The prompt is read at the start, so that decoding begins with one token, as in the other family."""

    def __init__(self, model: EagerModel, read_first: Sequence[int]) -> None:
        # Without the config every layer keeps all it read: layers that attend to a window only would drop what a
        # rollback needs. Their masks hold them to the window all the same.
        super().__init__(model, DynamicCache())
        if read_first:
            # The head's logits of the prompt are of no use, and large.
            self._read(read_first, logits_to_keep=1)

    def _inputs(self, tokens: Sequence[int]) -> dict[str, Any]:
        return {"input_ids": self.model.ids(tokens)}
