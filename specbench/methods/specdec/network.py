"""SpecDec's drafter (Xia et al. 2023, arXiv 2203.16487): a shallow decoder that predicts the next K tokens in one step.

After the text stand K queries, learned vectors instead of tokens, each at the position of the token that it
predicts. A query attends to the source, to the tokens of the text and to itself, not to the other queries: given the
text the predictions are independent.

The paper's drafter is a model of its own with a deep encoder. Here the deep encoder is the frozen target's: layer i
attends to the keys and values that one of the target's decoder layers made of the source. So the source is encoded
once, nothing of it is cached twice, and the drafter has only a decoder's weights. Embeddings and head are also the
target's.

Shapes: B rows, T tokens, K queries, L entries (tokens and queries), C entries that are attended to, H heads, D width, V
logits.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.engine.beside.declared import Attend, Entries, Source
from specbench.engine.eager.network_parts import own_head
from specbench.engine.saved_heads import SavedHeads
from specbench.errors import UserError
from specbench.methods.decoder_layer import DraftLayer, LayerShape, Norm, t5_weights


class ParallelDecoder(SavedHeads):
    """Queries, and decoder layers; `bind` gives it the target's embeddings and head.

    `layers` has for each layer the number of the target's layer whose keys and values of the source it attends to.
    `layer` is a `LayerShape` as a dict.
    """

    KIND, RECIPE, SHAPE = "specdec", "specdec", ("queries", "layers", "layer")

    def __init__(self, queries: int, layers: list[int], layer: dict[str, Any]) -> None:
        super().__init__()
        self.queries, self.layers, self.layer = queries, layers, layer
        self.shape = LayerShape(**layer)
        self.query_KD = nn.Parameter(torch.randn(queries, self.shape.width))
        self.norms = nn.ModuleList(Norm(self.shape) for _ in layers)
        self.blocks = nn.ModuleList(DraftLayer(self.shape, self.shape.width) for _ in layers)
        self.norm = Norm(self.shape)

    def bind(self, network: Any) -> "ParallelDecoder":
        """Use embeddings and head of the target `network`, without registering it as a submodule."""
        head = own_head(network)
        self._of_target: tuple[Callable[[Tensor], Tensor], ...] = (network.get_input_embeddings(), head)
        self.logits_size: int = head.weight.shape[0]
        return self

    @property
    def borrowed(self) -> dict[str, nn.Module]:
        """The module of the target that a step runs."""
        head: Any = self._of_target[1]
        return {"borrowed_head": head}

    @property
    def operations(self) -> float:
        """Arithmetic operations of one entry, its logits included."""
        own = sum(weight.numel() for weight in self.parameters()) - self.query_KD.numel()
        return 2.0 * (own + self.logits_size * self.shape.width)

    def embed(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self._of_target[0](ids)
        return embedded

    def project(self, states: Tensor) -> Tensor:
        """Logits [..., V] of what the decoder returns at queries."""
        logits: Tensor = self._of_target[1](states)
        return logits

    def forward(self, states_BLD: Tensor, sources: Sequence[Source], attends: Sequence[Attend]) -> Tensor:
        """States [B, L, D] of entries after the decoder; layer i attends as `attends[i]` says, and to `sources[i]`."""
        positions = torch.empty(0)  # relative positions are in the biases
        for norm, block, source, attend in zip(self.norms, self.blocks, sources, attends, strict=True):
            states_BLD = block(states_BLD, norm(states_BLD), positions, attend, source)
        after: Tensor = self.norm(states_BLD)
        return after

    def step(self, entries: Entries) -> Tensor:
        """Logits [1, L, V] after entries that join embeddings of tokens, or queries."""
        assert entries.states is not None
        layers: Any = self.blocks
        biases = [entries.bias(layer.bias_by_distance) for layer in layers]
        attends = [entries.attend(number, bias, self.shape.scale) for number, bias in enumerate(biases)]
        return self.project(self(entries.states, entries.sources, attends))

    def bias(self, block: int, distance_LC: Tensor, visible_LC: Tensor) -> Tensor:
        """The attention bias [H, L, C] of layer `block`: relative position bias, and -inf where an entry is hidden."""
        layer: Any = self.blocks[block]
        bias_HLC: Tensor = layer.bias_by_distance(distance_LC.clamp(min=0)).masked_fill(~visible_LC, -torch.inf)
        return bias_HLC

    def states_after_each(self, ids_BT: Tensor, sources: Sequence[Source], first: int = 0) -> Tensor:
        """Return the states [B, T - first, K, D] of queries after each token of whole texts from number `first` on.

        State [:, t, k] is about token first + t + 1 + k.
        """
        rows, tokens = ids_BT.shape
        places, queries = tokens - first, self.queries
        distance_LL, visible_LL = entries(tokens, first, queries, ids_BT.device)

        def attending(block: int) -> Attend:
            def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                bias = self.bias(block, distance_LL, visible_LL).to(query.dtype)
                return F.scaled_dot_product_attention(query, key, value, bias[None], scale=self.shape.scale)

            return attend

        queries_BLD = self.query_KD.to(self.embed(ids_BT).dtype).repeat(rows, places, 1)
        states_BLD = torch.cat([self.embed(ids_BT), queries_BLD], 1)
        after_BLD: Tensor = self(states_BLD, sources, [attending(block) for block in range(len(self.layers))])
        return after_BLD[:, tokens:].view(rows, places, queries, -1)


def entries(tokens: int, first: int, queries: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the distances [L, L] between the positions of entries, and bool [L, L]: what each attends to.

    Entries are a text's tokens, then the queries after each of them from number `first` on.
    """
    token_T = torch.arange(tokens, device=device)
    after_Q = token_T[first:].repeat_interleave(queries)  # the token that a query follows
    position_L = torch.cat([token_T, after_Q + 1 + torch.arange(queries, device=device).repeat(tokens - first)])
    last_seen_L = torch.cat([token_T, after_Q])
    visible_LT = token_T <= last_seen_L[:, None]
    itself_LQ = torch.eye(len(position_L), dtype=torch.bool, device=device)[:, tokens:]
    return position_L[:, None] - position_L, torch.cat([visible_LT, itself_LQ], 1)


def t5_pairs(decoder: ParallelDecoder, blocks: Sequence[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Each weight of the decoder's layers, except position biases, with the same weight of a T5's decoder layer."""
    layers: Any = zip(decoder.norms, decoder.blocks, blocks, strict=True)
    for norm, layer, block in layers:
        own = block.layer[0]
        yield norm.weight, own.layer_norm.weight
        for name in "qkvo":
            yield getattr(layer.self_attn, f"{name}_proj").weight, getattr(own.SelfAttention, name).weight
        yield from t5_weights(layer, block)


def require_t5(config: Any, key: str) -> None:
    """Check that this decoder is written for a target with this config of `transformers`.

    Raises UserError if it is not.
    """
    if config.model_type != "t5":
        raise UserError(
            f"{key}: SpecDec's decoder reads the encoder of a T5, and the target is {config.model_type}; use another "
            "draft, such as medusa or eagle"
        )
