"""DFlash (2602.06036): a few decoder layers that predict a whole block of tokens in one forward pass.

The target's states at several depths, of all tokens that it has read, are brought to one width by a linear layer and a
norm. Each layer makes keys and values of this context with the projections that it has for the block. The block is the
newest token, which the target has not read, and then masks: copies of the embedding of one token. All entries of the
block attend to the context and to each other. Embeddings and head are the target's own. Entry k of the block stands
for the token k places after the newest, and what the last layer makes of it predicts that token: a block of B entries
drafts B - 1 tokens.

DSpark (2607.05147) has the same layers, but entry k predicts the token after its own, so that the block drafts B
tokens. `Markov` adds to their logits what the token before says, and a head predicts whether a token will be accepted.

The layers are Qwen 3's. Weights are named as in the published checkpoints.

Shapes: B rows, T tokens, A places in a text where a block begins, L entries, K drafted tokens, F numbers of a tapped
state, D width, H query heads, E channels of a head, M rank, V logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.engine.beside.declared import Attend, Entries
from specbench.engine.eager.network_parts import decoder_layers, own_head
from specbench.engine.saved_heads import Facts, SavedHeads
from specbench.methods.decoder_layer import DraftLayer, LayerShape, Norm

ARCHITECTURES = {"dflash": "DFlashDraftModel", "dspark": "Qwen3DSparkModel"}


@dataclass(frozen=True)
class BlockShape:
    """The shape of the network.

    Attributes:
        taps: after how many of the target's decoder layers each state of the context is taken.
        block: entries of a block.
        mask: the token whose embedding stands for tokens that are not known.
        rank: numbers that a token is narrowed to before it changes the logits after it (DSpark); 0 is DFlash.
        confidence: numbers beside the state that predict acceptance (DSpark); None if nothing predicts it.
        own_rows: which of embeddings and head are its own (published DSpark).
    """

    layer: LayerShape
    layers: int
    taps: tuple[int, ...]
    block: int
    mask: int
    rank: int = 0
    confidence: int | None = None
    own_rows: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return "dspark" if self.rank else "dflash"

    @property
    def first(self) -> int:
        """The entry of the block that predicts the first drafted token."""
        return 0 if self.rank else 1

    @property
    def drafted(self) -> int:
        """Tokens of a proposal."""
        return self.block - self.first


class BlockLayer(DraftLayer):
    """A decoder layer with the norm before its self-attention."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape, shape.width)
        self.input_layernorm = Norm(shape)


class Markov(nn.Module):
    """The contribution of a token to the logits of the token after it."""

    def __init__(self, rows: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(rows, rank)
        self.markov_w2 = nn.Linear(rank, rows, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        added: Tensor = self.markov_w2(self.markov_w1(ids))
        return added


class Confidence(nn.Module):
    """The logit of a token's acceptance."""

    def __init__(self, reads: int) -> None:
        super().__init__()
        self.proj = nn.Linear(reads, 1)

    def forward(self, read: Tensor) -> Tensor:
        logit: Tensor = self.proj(read)[..., 0]
        return logit


class BlockDrafter(SavedHeads):
    """The network; `bind` connects it to the target's embeddings and head."""

    CALLED, FILE = "weights", "model.safetensors"

    def __init__(self, shape: BlockShape, rows: int) -> None:
        """`rows`: logits of the target's head."""
        super().__init__()
        self.shape, self.rows, width = shape, rows, shape.layer.width
        self.fc = nn.Linear(len(shape.taps) * width, width, bias=False)
        self.hidden_norm, self.norm = Norm(shape.layer), Norm(shape.layer)
        self.layers = nn.ModuleList(BlockLayer(shape.layer) for _ in range(shape.layers))
        if shape.rank:
            self.markov_head = Markov(rows, shape.rank)
        if shape.confidence is not None:
            self.confidence_head = Confidence(width + shape.confidence)
        if "embed_tokens" in shape.own_rows:
            self.embed_tokens = nn.Embedding(rows, width)
        if "lm_head" in shape.own_rows:
            self.lm_head = nn.Linear(width, rows, bias=False)

    def bind(self, network: Any) -> Self:
        """Draft for `network`, on its embeddings and head. The network is no part of this module."""
        own = dict(self.named_children())
        embeddings, head = (
            own.get("embed_tokens", network.get_input_embeddings()),
            own.get("lm_head", own_head(network)),
        )
        self._of_target: tuple[Any, Any] = (embeddings, head)  # in a tuple: the network's modules are not submodules
        self.target_layers = decoder_layers(network)
        return self

    @property
    def borrowed(self) -> dict[str, nn.Module]:
        """The modules of the target that a run reads."""
        return dict(zip(("borrowed_tokens", "borrowed_head"), self._of_target, strict=True))

    def described(self) -> Facts:
        """The fields of the published config."""
        shape, layer = self.shape, self.shape.layer
        own: Facts = {"mask_token_id": shape.mask, "target_layer_ids": [depth - 1 for depth in shape.taps]}
        if shape.rank:
            own |= {"markov_rank": shape.rank, "markov_head_type": "vanilla"}
            own |= {"enable_confidence_head": shape.confidence is not None}
            own |= {"confidence_head_with_markov": shape.confidence == shape.rank}
        return {
            "architectures": [ARCHITECTURES[shape.kind]], "model_type": "qwen3", "block_size": shape.block,
            **(own if shape.rank else {"dflash_config": own}), "hidden_size": layer.width,
            "hidden_act": layer.activation,
            "intermediate_size": layer.hidden, "num_hidden_layers": shape.layers, "num_attention_heads": layer.heads,
            "num_key_value_heads": layer.key_heads, "head_dim": layer.head_width, "rms_norm_eps": layer.eps,
            "rope_theta": layer.theta, "vocab_size": self.rows, "num_target_layers": self.target_layers,
        }  # fmt: skip

    @property
    def operations(self) -> float:
        """Arithmetic operations of a block, with one entry of the context."""
        layers = sum(weight.numel() for weight in self.layers.parameters())
        of_logits = self.rows * (self.shape.layer.width + self.shape.rank)
        return 2.0 * (self.shape.block * layers + self.fc.weight.numel() + self.shape.drafted * of_logits)

    def context(self, features_BTF: Tensor) -> Tensor:
        """The target's tapped states as the layers read them [B, T, D]."""
        context_BTD: Tensor = self.hidden_norm(self.fc(features_BTF))
        return context_BTD

    def entries(self, ids: Tensor) -> Tensor:
        """The tokens [..., L] of blocks that begin with the tokens `ids` [...]."""
        return torch.cat([ids.unsqueeze(-1), ids.new_full((*ids.shape, self.shape.block - 1), self.shape.mask)], -1)

    def embed(self, ids: Tensor) -> Tensor:
        """The first layer's input at the tokens of blocks."""
        embedded: Tensor = self._of_target[0](ids)
        return embedded

    def forward(self, states_BLD: Tensor, positions_BL: Tensor, attends: Sequence[Attend]) -> Tensor:
        """The head's input at the entries of blocks; layer i attends as `attends[i]` says."""
        layers: Any = self.layers
        for layer, attend in zip(layers, attends, strict=True):
            states_BLD = layer(states_BLD, layer.input_layernorm(states_BLD), positions_BL, attend, None)
        after: Tensor = self.norm(states_BLD)
        return after

    def read(self, entries: Entries) -> Tensor:
        """Make keys and values of the context, whose target's states `entries` join; what they are made from."""
        assert entries.states is not None
        layers: Any = self.layers
        context = self.context(entries.states)
        for number, layer in enumerate(layers):
            entries.write(number, *layer.keys_values(context, entries.positions_BL))
        return context

    def states(self, entries: Entries) -> Tensor:
        """The head's input at the entries of blocks."""
        bias, scale = entries.bias(), self.shape.layer.scale
        attends = [entries.attend(number, bias, scale) for number in range(self.shape.layers)]
        found: Tensor = self(self.embed(entries.ids_BL), entries.positions_BL, attends)
        return found

    def block(self, entries: Entries) -> Tensor:
        """Logits, then states, at the entries of a block."""
        states = self.states(entries)
        return torch.cat([self.project(states), states], -1)

    def accepted(self, states_ND: Tensor, before_N: Tensor) -> Tensor:
        """The logit [N] of the predicted acceptance of tokens, from their states and the tokens before them."""
        read = [states_ND]
        if self.shape.confidence:
            read.append(self.markov_head.markov_w1(before_N))
        accepted: Tensor = self.confidence_head(torch.cat(read, -1))
        return accepted

    def project(self, states: Tensor) -> Tensor:
        """Logits [..., V], of DSpark without what the token before adds."""
        logits: Tensor = self._of_target[1](states)
        return logits

    def states_after(self, features_BTF: Tensor, ids_BT: Tensor, places_A: Tensor) -> Tensor:
        """The states [B, A, K, D] of the tokens that blocks beginning at the tokens `places_A` draft, along texts.

        A block at token a reads the context of the tokens before a. State [:, i, k] is about token places_A[i] + 1 + k.
        """
        shape, (rows, tokens), device = self.shape, features_BTF.shape[:2], ids_BT.device
        context_BTD, numbers = self.context(features_BTF), torch.arange(tokens, device=device)
        visible = visible_to_blocks(places_A, tokens, shape.block)[None, None]
        positions = (places_A[:, None] + torch.arange(shape.block, device=device)).flatten()
        layers: Any = self.layers

        def attending(layer: BlockLayer) -> Attend:
            of_context = layer.keys_values(context_BTD, numbers.expand(rows, -1))

            def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                both = (torch.cat(pair, 2) for pair in zip(of_context, (key, value), strict=True))
                keys, values = (one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in both)
                return F.scaled_dot_product_attention(query, keys, values, visible, scale=shape.layer.scale)

            return attend

        embedded_BLD = self.embed(self.entries(ids_BT[:, places_A]).flatten(1))
        after_BLD = self(embedded_BLD, positions.expand(rows, -1), [attending(layer) for layer in layers])
        states_BAKD: Tensor = after_BLD.unflatten(1, (len(places_A), shape.block))[:, :, shape.first :]
        return states_BAKD


def visible_to_blocks(places_A: Tensor, tokens: int, block: int) -> Tensor:
    """Bool [A x L, T + A x L]: entries of a block see the context before the block, and the block."""
    of_block = torch.arange(len(places_A), device=places_A.device).repeat_interleave(block)
    context = torch.arange(tokens, device=places_A.device) < places_A[of_block, None]
    return torch.cat([context, of_block[:, None] == of_block], 1)
