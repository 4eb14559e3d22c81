"""EAGLE and EAGLE-3: one decoder layer that predicts a target's next feature from its features and shifted embeddings.

EAGLE (Li et al. 2024, 2401.15077): the feature is what the target's head reads. Entry j joins the feature of token j
and the embedding of token j + 1; a linear layer brings both to the target's width, and one decoder layer without the
norm before its self-attention predicts the feature of token j + 1, which the target's own head turns into logits for
token j + 2.

EAGLE-3 (Li et al. 2025, 2503.01840): the feature is three states of different depths, fused by a linear layer. The
decoder layer's self-attention reads [norm(embedding); norm(fused)], twice the width; a norm and a head of its own, over
the tokens of a draft vocabulary, give logits. Its predictions are fed back, without a loss on features.

Where the papers are silent: a T5 layer's cross-attention reads the keys and values that the target's last layer made of
the source, so that nothing is computed or cached twice. T5 scales its states before a tied head; features are scaled
back first. Learned positions (GPT-2) are added to the embedding, which is what the target's own first layer reads.

Shapes: B rows, L entries, D width, F numbers of a target's feature, N tokens of the draft vocabulary, V logits.
"""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from specbench.engine.beside.declared import Attend, Entries, Source
from specbench.engine.eager.network_parts import own_head
from specbench.engine.saved_heads import Facts, SavedHeads
from specbench.methods.decoder_layer import DraftLayer, LayerShape, Norm

OURS = "eagle"  # the field of config.json by which folders of our recipes are known


@dataclass(frozen=True)
class EagleShape:
    """The shape of EAGLE's layer.

    Attributes:
        taps: after how many of the target's decoder layers each fused state is taken; none is EAGLE, whose feature is
            the input of the head.
        feature_scale: brings the feature to the size of the layer's other inputs.
        vocabulary: tokens of the draft vocabulary, None for all.
        own_head: it has its own head; otherwise it reads the target's rows.
        own_embeddings: rows of its own embeddings (published checkpoints); 0 if it reads the target's.
        state_width: the width of a tapped state, if it differs from the layer's (published checkpoints).
        fuse_norm: the norm of the states before they are fused, all as one vector ("joint") or each ("each") (published
            EAGLE-3).
        norm_before_residual: the residual stream begins with the normalised state (published EAGLE-3).
        norm_output: the normalised prediction is fed back (published EAGLE-3).
    """

    layer: LayerShape
    taps: tuple[int, ...] = ()
    feature_scale: float = 1.0
    vocabulary: int | None = None
    own_head: bool = False
    fc_bias: bool = True
    own_embeddings: int = 0
    state_width: int | None = None
    fuse_norm: str = "none"  # none | joint | each
    norm_before_residual: bool = False
    norm_output: bool = False

    @property
    def kind(self) -> str:
        return "eagle3" if self.taps else "eagle"

    @property
    def tapped_width(self) -> int:
        """Numbers of one tapped state."""
        return self.state_width or self.layer.width

    @property
    def feature_width(self) -> int:
        """Numbers of a target's feature."""
        return len(self.taps) * self.tapped_width if self.taps else self.layer.width


class Eagle(SavedHeads):
    """The layer with its input and output modules. `bind` connects it to the target's head and embeddings."""

    KIND, RECIPE, CALLED, FILE = "EAGLE", "eagle", "weights", "eagle.safetensors"
    FIELD: ClassVar[str] = OURS
    SHAPES: ClassVar[type[EagleShape]] = EagleShape

    def __init__(self, shape: EagleShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.layer.width
        if shape.taps:
            fused = len(shape.taps) * shape.tapped_width
            self.fc = nn.Linear(fused, width, bias=False)
            if shape.fuse_norm == "joint":
                self.input_norm = Norm(shape.layer, fused)
            if shape.fuse_norm == "each":
                self.fc_norm = nn.ModuleList(Norm(shape.layer, shape.tapped_width) for _ in shape.taps)
            self.input_layernorm, self.hidden_norm, self.norm = (Norm(shape.layer) for _ in range(3))
            if shape.own_head:
                self.lm_head = nn.Linear(width, shape.vocabulary or 0, bias=False)
            if shape.vocabulary is not None:
                self.draft_vocabulary: Tensor
                self.register_buffer("draft_vocabulary", torch.zeros(shape.vocabulary, dtype=torch.long))
        else:
            self.fc = nn.Linear(2 * width, width, bias=shape.fc_bias)
        self.layer = DraftLayer(shape.layer, 2 * width if shape.taps else width)
        self.embed_tokens = nn.Embedding(shape.own_embeddings, width) if shape.own_embeddings else None

    def bind(self, network: Any) -> Self:
        """Draft for `network`, on its head, its embeddings and its device. The network is no part of this module."""
        head = own_head(network)
        own = self.shape.own_head
        if self.shape.vocabulary is not None and not own:
            rows_ND = head.weight.detach()[self.draft_vocabulary.to(head.weight.device)]
            project = nn.Linear(rows_ND.shape[1], len(rows_ND), bias=False, device="meta")
            project.weight = nn.Parameter(rows_ND, requires_grad=False)
        else:
            project = self.lm_head if own else head
        self._project: tuple[nn.Module] = (project,)  # in tuples: the network's modules are not submodules
        self.vocabulary_size: int = head.weight.shape[0]
        tokens, positions = self.embed_tokens or network.get_input_embeddings(), None
        if self.shape.layer.positions == "learned":
            positions = network.get_decoder().wpe
        self._embeddings = (tokens, positions)
        return self

    @property
    def borrowed(self) -> dict[str, nn.Module]:
        """The modules of the target that a step runs."""
        tokens, positions = self._embeddings
        found = {"borrowed_tokens": tokens, "borrowed_positions": positions, "borrowed_head": self._project[0]}
        return {name: module for name, module in found.items() if module is not None}

    def embed(self, ids_BL: Tensor, first: int | Tensor) -> Tensor:
        """The input of the target's first layer at these tokens; `first`: position of the first token, or of each."""
        tokens, positions = self._embeddings
        embedded: Tensor = tokens(ids_BL)
        if positions is None:
            return embedded
        if isinstance(first, int):
            first = torch.arange(first, first + ids_BL.shape[-1], device=ids_BL.device)
        placed: Tensor = embedded + positions(first.clamp(max=positions.num_embeddings - 1))
        return placed

    def fuse(self, features_BLF: Tensor) -> Tensor:
        """The target's own features as the layer's input [B, L, D]."""
        if self.shape.taps:
            if self.shape.fuse_norm == "joint":
                features_BLF = self.input_norm(features_BLF)
            if self.shape.fuse_norm == "each":
                each = features_BLF.split(self.shape.tapped_width, -1)
                features_BLF = torch.cat([norm(one) for norm, one in zip(self.fc_norm, each, strict=True)], -1)
            fused: Tensor = self.fc(features_BLF)
            return fused
        return features_BLF if self.shape.feature_scale == 1 else features_BLF * self.shape.feature_scale

    def forward(
        self, states_BLD: Tensor, embedded_BLD: Tensor, positions_BL: Tensor, attend: Attend, source: Source | None
    ) -> Tensor:
        """The predicted features [B, L, D], in the units of `fuse`.

        They are of entries that join `states_BLD`, fused or predicted, and the embeddings of the tokens after them.
        """
        if not self.shape.taps:
            states_BLD = self.fc(torch.cat([embedded_BLD, states_BLD], -1))
            return self.layer(states_BLD, states_BLD, positions_BL, attend, source)  # type: ignore[no-any-return]
        normal_BLD = self.hidden_norm(states_BLD)
        read = torch.cat([self.input_layernorm(embedded_BLD), normal_BLD], -1)
        stream_BLD = normal_BLD if self.shape.norm_before_residual else states_BLD
        predicted: Tensor = self.layer(stream_BLD, read, positions_BL, attend, source)
        return self.norm(predicted) if self.shape.norm_output else predicted

    @property
    def layers(self) -> int:
        """Decoder layers, each with a cache of its own."""
        return 1

    def width_of(self, kind: str) -> int:
        """Numbers of a state that a step takes: a `read` one features, a `draft` one predictions."""
        return self.shape.layer.width if kind == "draft" else self.shape.feature_width

    def step(self, kind: str, entries: Entries) -> Tensor:
        """Logits, then states, after each of `entries`; in a `read` step only after the last one."""
        assert entries.states is not None
        fused = self.fuse(entries.states) if kind == "read" else entries.states
        attend = entries.attend(0, entries.bias(self.layer.bias_by_distance), self.shape.layer.scale)
        embedded = self.embed(entries.ids_BL, entries.positions_BL + 1)
        predicted = self(fused, embedded, entries.positions_BL, attend, entries.source)
        if kind == "read":
            predicted = predicted[:, -1:]
        return torch.cat([self.logits(predicted), predicted], -1)

    def draft_logits(self, states: Tensor) -> Tensor:
        """Logits over the draft vocabulary, of predicted features."""
        if not self.shape.taps:
            states = states if self.shape.feature_scale == 1 else states * (1 / self.shape.feature_scale)
        elif not self.shape.norm_output:
            states = self.norm(states)
        logits: Tensor = self._project[0](states)
        return logits

    def logits(self, states_LD: Tensor) -> Tensor:
        """[L, V]; a token that is not in the draft vocabulary is never proposed."""
        logits = self.draft_logits(states_LD)
        if self.shape.vocabulary is None:
            return logits
        whole = logits.new_full((*logits.shape[:-1], self.vocabulary_size), -torch.inf)
        return whole.index_copy(-1, self.draft_vocabulary, logits)

    @property
    def operations(self) -> float:
        """Arithmetic operations of a step, its head's included."""
        looked_up = ("lm_head", "embed_tokens")
        own = sum(weight.numel() for name, weight in self.named_parameters() if not name.startswith(looked_up))
        return 2.0 * (own + (self.shape.vocabulary or self.vocabulary_size) * self.shape.layer.width)

    def described(self) -> Facts:
        return {self.FIELD: asdict(self.shape)}

    @classmethod
    def shape_of(cls, facts: Facts) -> tuple[EagleShape]:
        told = facts[cls.FIELD]
        return (cls.SHAPES(**told | {"layer": LayerShape(**told["layer"]), "taps": tuple(told["taps"])}),)

    @classmethod
    def recipe_of(cls, facts: Facts) -> str:
        return cls.shape_of(facts)[0].kind
