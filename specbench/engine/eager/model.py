"""A `transformers` model run eagerly, and the base of all engines; many hypotheses of a beam search in one run.

Shapes: N hypotheses to read, R rows in the cache, L new positions, M hypotheses asked for, V logits of the head.
"""

import copy
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, EncoderDecoderCache

from specbench.engine.batch import Batch
from specbench.engine.batch_steps import EagerSteps, StepsOfRows
from specbench.engine.beginnings import PROMPTS
from specbench.engine.cache_names import cache_argument
from specbench.engine.eager.network_parts import Part, reduced
from specbench.engine.eager.recurrence import Recurrence
from specbench.engine.eager.recurrent_sessions import RecurrentSession
from specbench.engine.eager.sessions import DecoderOnlySession, EncoderDecoderSession
from specbench.engine.experts import Experts, use_experts_of_any_shape
from specbench.engine.placement import Placement
from specbench.engine.reads import Read
from specbench.engine.saved_heads import Positions, readable_tokens
from specbench.engine.session import Model, Prompt, Session, Tokens, require_readable
from specbench.engine.time_marks import clock_of
from specbench.engine.window import Window, WindowedEager
from specbench.errors import UserError

# Keys and values of cross-attention, as T5 and the families after BART name them.
ONCE_A_SOURCE = re.compile(r"(EncDecAttention|encoder_attn)\.(k|v|k_proj|v_proj)$")


@dataclass(frozen=True)
class SessionTraits:
    """States that a model's sessions hand over, and features that they lack.

    Attributes:
        columns: numbers after the logits that hold what the head read, and as many for each of `taps`; see
            `eager.network_parts.return_states`.
        taps: after how many layers states are tapped.
        of_prompt: they also hand over the states of the whole prompt.
        lookahead_embeddings: of PaSS: folder -> ids that stand for its embeddings.
        no_trees: why they read no trees, unless the network is the reason.
    """

    columns: int = 0
    taps: tuple[int, ...] = ()
    of_prompt: bool = False
    lookahead_embeddings: Positions = field(default_factory=dict)
    no_trees: str | None = None


PLAIN = SessionTraits()


@dataclass
class EngineReport:
    """How a model came to run as it does.

    Attributes:
        warmup_s: seconds spent on making it ready.
        fell_back: why 'auto' came to it.
        rollout_fell_back: why it drafts step by step, if its steps should be one graph.
        not_invariant: why rows depend on how many are read at once, if they should not.
        unused_tensors: tensors of its files for which the network has no place.
        weights: what became of quantised weights, in words.
        gpu_kernels: the kernels of ours that its captured steps call (`engine.operations.fused`); None off a GPU.
    """

    warmup_s: float = 0.0
    fell_back: str | None = None
    rollout_fell_back: str | None = None
    not_invariant: str | None = None
    unused_tensors: tuple[str, ...] = ()
    weights: str | None = None
    gpu_kernels: frozenset[str] | None = None


class EagerModel(Model):
    """A `transformers` model with a language head, ready to start sessions."""

    engine = "eager"
    no_windows: str | None = None  # why its sessions cannot have a window
    program: Any = None  # its step, if it is captured

    def __init__(
        self, network: Any, vocabulary_size: int, eos_ids: frozenset[int], traits: SessionTraits = PLAIN
    ) -> None:
        self.report = EngineReport()
        self.state_width, self.tap_width = traits.columns * (1 + len(traits.taps)), traits.columns * len(traits.taps)
        self.tap_depths, self.states_of_prompt, self.no_trees = traits.taps, traits.of_prompt, traits.no_trees
        self.lookahead_embeddings = traits.lookahead_embeddings
        self.window: Window | None = None  # what sessions attend to; None: to everything
        self.invariant = False  # rows do not depend on how many are read at once, which was proved at start
        self.network = network.eval()
        use_experts_of_any_shape(network)
        self.vocabulary_size = vocabulary_size
        self.eos_ids = eos_ids
        self.device: torch.device = network.device
        self.is_encoder_decoder: bool = network.config.is_encoder_decoder
        # Where learned positions end. Relative positions (T5) do not; rotary positions have their stated length.
        self.longest: int | None = getattr(network.config, "max_position_embeddings", None)
        self.readable = readable_tokens(network)
        self.operations = 2.0 * _weights_per_step(network)
        self.placement = Placement(network)
        self.recurrence = Recurrence.of(network)
        self._shallow: dict[Part, EagerModel] = {}
        # Not methods of its own: a model that holds itself is freed late, and a sweep frees models to load others.
        self.now, self.mark = clock_of(network)

    def shallow(self, layers: int, skipped: frozenset[str] = frozenset()) -> "EagerModel":
        """The first `layers` decoder layers without the sublayers `skipped`, with the final norm and head.

        They share the weights and are made once.
        """
        part = Part(layers, skipped)
        if part not in self._shallow:
            self._shallow[part] = self._same_engine(reduced(self.network, part))
        return self._shallow[part]

    def windowed(self, window: Window, key: str) -> "EagerModel":
        """This model, its weights shared, with sessions that attend only to `window`.

        Raises UserError if its sessions cannot; the message names `key`.
        """
        recurrent = None if self.recurrence is None else "has recurrent layers, whose states are of the whole text"
        if reason := self.no_windows or recurrent or self.placement.no_trees:
            raise UserError(f"{key}: {type(self.network).__name__} {reason}; use engine=eager, or no window")
        made = copy.copy(self)
        made.window, made.report = window, replace(self.report)
        return made

    def project(self, states_ND: Tensor) -> Tensor:
        """Logits [N, V] of only the head, for a network that returns the input of its head."""
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

    def in_batch(self, rows: int) -> Batch:
        return Batch.of(self, rows)

    def start(self, prompt: Prompt) -> Session:
        if self.is_encoder_decoder:
            session = EncoderDecoderSession(self, prompt.source)
            if len(prompt.prefix) > 1:
                session.extend(prompt.prefix[:-1])
                PROMPTS.read += len(prompt.prefix) - 1
            return session
        if self.window is not None:
            return WindowedEager(self, prompt, self.window)
        return (DecoderOnlySession if self.recurrence is None else RecurrentSession)(self, prompt)

    def require_trees(self, key: str = "tree", instead: str = "use tree=none") -> None:
        """Check that sessions of this model can read a tree.

        Raises UserError if they cannot; the message names the `key` that needs it, and what to do `instead`.
        """
        if reason := self.no_trees or (None if self._only_recurrent else self.placement.no_trees):
            raise UserError(f"{key}: {type(self.network).__name__} {reason}; {instead}")

    @property
    def recurrent_layers(self) -> int:
        return 0 if self.recurrence is None else self.recurrence.recurrent_layers

    @property
    def _only_recurrent(self) -> bool:
        """Whether no layer has an attention, so that nothing depends on positions or masks."""
        return self.recurrence is not None and not self.recurrence.attends

    def require_batches(self, rows: int) -> None:
        """Raise UserError if the network cannot run over `rows` rows at once."""
        if reason := None if self._only_recurrent else self.placement.no_trees:
            raise UserError(f"batch={rows}: {type(self.network).__name__} {reason}; use batch=1")

    def steps_of_rows(self, rows: int) -> StepsOfRows:
        """How the network runs over up to `rows` rows, see `Batch`. Raises UserError if it cannot."""
        self.require_batches(rows)
        return EagerSteps(self.network, self.placement)

    @property
    def reads_at_once(self) -> bool:
        """Whether one run reads for several sessions: recurrent states are of sessions, and in no buffers."""
        return self.recurrence is not None

    def read_at_once(self, reads: Sequence[Read]) -> list[Tensor]:
        """The logits of each of `reads` from one run; equal to single runs' up to rounding."""
        if len(reads) == 1:
            return [reads[0].session.extend(reads[0].tokens, reads[0].parents)]
        return RecurrentSession.read_rows(self, reads)

    def bytes_of_session(self, tokens: int) -> int:
        """Maximum bytes that a session of this network, which has recurrent layers, caches for so many tokens."""
        session = RecurrentSession(self, Prompt((), (0, 0)))
        return session.bytes_of(tokens)

    def weights_changed(self) -> None:
        """The network's weights have been changed in place: drop or renew all that was computed from them."""

    def ids(self, tokens: Tokens) -> Tensor:
        return ids_on(self.device, tokens, self.readable)


def ids_on(device: torch.device, tokens: Tokens, readable: int) -> Tensor:
    """`tokens` [1, L] on `device`. Raises UserError for a token beyond the first `readable`."""
    if isinstance(tokens, Tensor):
        return tokens.unsqueeze(0)
    require_readable(tokens, readable)
    if device.type != "cpu" or not tokens:
        return torch.tensor([tokens], dtype=torch.long, device=device)
    # torch.tensor looks at each number by itself, and takes ten times as long.
    return torch.frombuffer(array("q", tokens), dtype=torch.long).unsqueeze(0)


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
    experts = Experts.of(network)
    unread = 0 if experts is None else experts.unread
    return int(sum((counted | {id(head): head.numel()}).values())) - unread


TokenSequence = tuple[int, ...]
PADDING = -1


class PrefixBatch:
    """A model's cache of the hypotheses that it read last. Each begins with the prompt's prefix.

    The network runs eagerly, whatever engine the model has, over a growing cache with a row for each hypothesis. The
    row that a new hypothesis can reuse, and how much of it, is found by comparing tokens.
    """

    def __init__(self, model: EagerModel, prompt: Prompt) -> None:
        """The encoder runs once; a decoder-only model reads all of the prompt but its last token.

        Raises UserError if the model has recurrent states, into which padding would be read.
        """
        if model.recurrence is not None:
            name = type(model.network).__name__
            raise UserError(f"bench beam: {name} has recurrent states, which it does not support; use specbench run")
        self._model = model
        self._encoded: Tensor | None = None
        self._forget()
        with torch.inference_mode():
            if model.is_encoder_decoder:
                self._encoded = model.network.get_encoder()(input_ids=model.ids(prompt.source)).last_hidden_state
            elif prompt.prefix[:-1]:
                self._run(_padded([prompt.prefix[:-1]]), 0, logits_to_keep=1)

    @torch.inference_mode()
    def read(self, hypotheses: Iterable[TokenSequence]) -> dict[TokenSequence, Tensor]:
        """fp32 log-probabilities [V] of the next token of each hypothesis, from one run of the model.

        A hypothesis that is the beginning of another adds nothing to the run. Normalised over the whole head, as
        `transformers` does; ids that the tokenizer lacks are -inf after that.
        """
        asked = list(dict.fromkeys(hypotheses))
        shortest = min(map(len, asked))
        inner = {each[:length] for each in asked for length in range(shortest, len(each))}
        leaves = [hypothesis for hypothesis in asked if hypothesis not in inner]
        leaf_of = {leaf[:n]: number for number, leaf in enumerate(leaves) for n in range(shortest, len(leaf) + 1)}

        tokens_NT = _padded(leaves)
        cached = self._crop_to_common(tokens_NT, shortest - 1)
        logits_NLV = self._run(tokens_NT, cached)
        leaf_M, last_M = [leaf_of[hypothesis] for hypothesis in asked], [len(each) - 1 - cached for each in asked]
        logits_MV = logits_NLV[leaf_M, last_M]
        rows_MV = logits_MV.float().log_softmax(-1)
        rows_MV[:, self._model.vocabulary_size :] = -torch.inf
        return dict(zip(asked, rows_MV, strict=True))

    def _forget(self) -> None:
        self._read_RT = torch.empty(0, 0, dtype=torch.long)
        # Without a config every layer caches all it read, see `DecoderOnlySession`.
        self._cache: Any = DynamicCache()
        if self._model.is_encoder_decoder:
            self._cache = EncoderDecoderCache(self._cache, DynamicCache())

    def _crop_to_common(self, tokens_NT: Tensor, most: int) -> int:
        """Crop and reorder the cache to the prefix that each hypothesis has in common with some row.

        The same number of tokens for all, at most `most`. Returns that number.
        """
        compared = min(tokens_NT.shape[1], self._read_RT.shape[1])
        if not compared:
            return 0
        # Padding equals padding, but only after the end of a hypothesis, and `most` is before that.
        same_NR = (tokens_NT[:, None, :compared] == self._read_RT[None, :, :compared]).cumprod(-1).sum(-1)
        common_N, row_N = same_NR.max(-1)
        cached = min(most, int(common_N.min()))
        if cached:
            surplus = self._read_RT.shape[1] - cached
            if surplus:
                self._cache.crop(-surplus)  # a negative count removes that many in every release
            self._cache.reorder_cache(row_N.to(self._model.device))
        else:
            self._forget()
        return cached

    def _run(self, tokens_NT: Tensor, cached: int, **options: Any) -> Tensor:
        """Logits [N, L, V] after the `cached` tokens of each hypothesis.

        Attention is causal, so the padding after a shorter hypothesis changes nothing before it.
        """
        ids_NL = tokens_NT[:, cached:].clamp(min=0).to(self._model.device)
        if self._encoded is None:
            inputs: dict[str, object] = {"input_ids": ids_NL}
        else:
            inputs = {"decoder_input_ids": ids_NL, "encoder_outputs": (self._encoded.expand(len(ids_NL), -1, -1),)}
        logits_NLV: Tensor = self._model.network(
            use_cache=True, **{cache_argument(self._model.network): self._cache}, **inputs, **options
        ).logits
        self._read_RT = tokens_NT
        return logits_NLV


def _padded(hypotheses: list[TokenSequence]) -> Tensor:
    """Token ids [N, T], the shorter hypotheses filled up with PADDING."""
    return pad_sequence([torch.tensor(each) for each in hypotheses], batch_first=True, padding_value=PADDING)
