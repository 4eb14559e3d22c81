"""A `transformers` model run eagerly, and the base of all engines."""

import re
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from specbench.engine.batch_steps import EagerSteps, StepsOfRows
from specbench.engine.clock import clock_of
from specbench.engine.eager.parts import reduced
from specbench.engine.eager.placement import Placement
from specbench.engine.eager.sessions import DecoderOnlySession, EncoderDecoderSession
from specbench.engine.saved_heads import Positions
from specbench.engine.session import NONE, LayeredSession, Part, Prompt, Tokens
from specbench.errors import UserError

# Keys and values of cross-attention, as T5 and the families after BART name them.
ONCE_A_SOURCE = re.compile(r"(EncDecAttention|encoder_attn)\.(k|v|k_proj|v_proj)$")


class EagerModel:
    """A `transformers` model with a language head, ready to start sessions."""

    engine = "eager"
    warmup_s = 0.0  # seconds spent on making the engine ready
    fell_back: str | None = None  # why 'auto' came to this
    rollout_fell_back: str | None = None  # why it drafts step by step, where its steps should be one graph
    invariant = False  # rows do not depend on how many are read at once, which was proved at start
    not_invariant: str | None = None  # why, where they were meant not to
    no_trees: str | None = None  # why its sessions read no trees, where that is not the network's own doing
    no_batches: str | None = None  # the same of batches
    state_width = 0  # columns after the logits that hold what the head read, and taps; see eager.states.return_states
    tap_depths: tuple[int, ...] = ()  # after how many layers the taps are
    tap_width = 0  # columns of them, the last
    states_of_prompt = False  # sessions hand over the states of the whole prompt, too
    pass_embeddings: Positions = MappingProxyType({})  # of PaSS: folder -> ids that stand for its embeddings

    def __init__(self, network: Any, vocabulary_size: int, eos_ids: frozenset[int]) -> None:
        self.network = network.eval()
        self.vocabulary_size = vocabulary_size
        self.eos_ids = eos_ids
        self.device: torch.device = network.device
        self.is_encoder_decoder: bool = network.config.is_encoder_decoder
        # Where learned positions end. Relative positions (T5) do not; rotary positions have their stated length.
        self.longest: int | None = getattr(network.config, "max_position_embeddings", None)
        self.operations = 2.0 * _weights_per_step(network)
        self.placement = Placement(network)
        self._shallow: dict[Part, EagerModel] = {}
        # Not methods of its own: a model that holds itself is freed late, and a sweep frees models to load others.
        self.now, self.mark = clock_of(network)

    def shallow(self, layers: int, skipped: frozenset[str] = NONE) -> "EagerModel":
        """The first `layers` decoder layers without the sublayers `skipped`, with the final norm and head.

        They share the weights and are made once.
        """
        part = Part(layers, skipped)
        if part not in self._shallow:
            self._shallow[part] = self._same_engine(reduced(self.network, part))
        return self._shallow[part]

    def project(self, states_ND: Tensor) -> Tensor:
        """Logits [N, V] of the head alone, for a network that returns the input of its head."""
        logits_NV: Tensor = self.network.get_output_embeddings().head(states_ND)
        return logits_NV

    def ready(self, function: Callable[..., Tensor], widths: Sequence[int]) -> Callable[..., Tensor]:
        """`function` of tensors [1, N, W], one of each of `widths`, as this engine runs a draft's layers: as it is.

        Its weights must not change.
        """
        return function

    def _same_engine(self, network: Any) -> "EagerModel":
        """A model of this engine over `network`, a part of this model's network that shares its weights."""
        return EagerModel(network, self.vocabulary_size, self.eos_ids)

    def start(self, prompt: Prompt) -> LayeredSession:
        if self.is_encoder_decoder:
            session = EncoderDecoderSession(self, prompt.source)
            if len(prompt.prefix) > 1:
                session.extend(prompt.prefix[:-1])
            return session
        return DecoderOnlySession(self, prompt.prefix[:-1])

    def require_trees(self) -> None:
        """Check that sessions of this model can read a tree.

        Raises:
            UserError: they cannot.
        """
        if reason := self.no_trees or self.placement.no_trees:
            raise UserError(f"tree: {type(self.network).__name__} {reason}; use tree=none")

    def steps_of_rows(self, rows: int) -> StepsOfRows:
        """How the network runs over up to `rows` rows, see `Batch`. Raises UserError where it cannot."""
        self.require_batches(rows)
        return EagerSteps(self.network, self.placement)

    def require_batches(self, rows: int) -> None:
        """Raise UserError where the network cannot read rows of several lengths."""
        if reason := self.no_batches or self.placement.no_trees:
            raise UserError(f"batch={rows}: {type(self.network).__name__} {reason}; use batch=1")

    def weights_changed(self) -> None:
        """The network's weights have been changed in place: drop or renew all that was computed from them."""

    def ids(self, tokens: Tokens) -> Tensor:
        return tokens.unsqueeze(0) if isinstance(tokens, Tensor) else torch.tensor([tokens], device=self.device)


def _weights_per_step(network: Any) -> int:
    """The number of weights that one decoding step multiplies with.

    Without the encoder's, embeddings that are only looked up, and the keys and values of cross-attention, which are
    computed once for a source.
    """
    left_out = [module for module in network.modules() if isinstance(module, nn.Embedding)]
    if network.config.is_encoder_decoder:
        left_out.append(network.get_encoder())
        left_out += [module for name, module in network.get_decoder().named_modules() if ONCE_A_SOURCE.search(name)]
    skipped = {id(parameter) for module in left_out for parameter in module.parameters()}
    head = network.get_output_embeddings().weight
    counted = {id(p): p.numel() for p in network.parameters() if id(p) not in skipped}
    return sum((counted | {id(head): head.numel()}).values())
