"""A depth of multi-token prediction: one more decoder layer of the target's own family, after a layer that joins.

DeepSeek-AI 2024, "DeepSeek-V3 Technical Report" (2412.19437), section 2.2. Entry j joins the target's last state at
token j and the embedding of token j + 1, each after a norm; the decoder layer follows, then a norm, and the target's
head predicts token j + 2. The state after the norm is what the next depth reads.

The decoder layer is the module that `transformers` has for the target, with its experts, latents and rotary positions:
only its attention function is replaced, so that the caller says what attends to what (`Attend`).

Shapes: B rows, L entries, D width, H query heads, K key heads, E channels of a head.
"""

import copy
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from specbench.engine.beside.declared import Attend, Source
from specbench.engine.eager.network_parts import layer_list
from specbench.engine.saved_heads import Facts
from specbench.errors import UserError, first_line
from specbench.methods.decoder_layer import LayerShape, final_norm
from specbench.methods.eagle.network import Eagle, EagleShape

OURS = "mtp"  # the field of config.json by which folders of our recipe are known
ROUTED = "specbench-routed"  # the attention function, in transformers' registry


def _routed(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, attend: Attend, **options: Any
) -> tuple[Tensor, None]:
    """An attention function as `transformers` calls it: what attends to what is the caller's `attend`."""
    for name in ("sliding_window", "softcap", "s_aux"):
        if options.get(name) is not None:
            raise NotImplementedError(f"attention with {name}")
    return attend(query, key, value).transpose(1, 2).contiguous(), None


AttentionInterface.register(ROUTED, _routed)


class FamilyLayer(nn.Module):
    """A decoder layer of `transformers` whose attention is the caller's."""

    def __init__(self, layer: Any, rotary: Any, layer_type: str | None) -> None:
        """`rotary` is the target's module of rotary positions, None if positions are learned.

        `layer_type` is what it takes to tell kinds of layers apart.
        """
        super().__init__()
        for module in layer.modules():
            if hasattr(module, "config"):
                module.config._attn_implementation = ROUTED
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        self.layer = layer
        self.rotary: tuple[Any] = (rotary,)  # in a tuple: it is the target's
        self._told = {} if layer_type is None else {"layer_type": layer_type}

    def forward(self, states_BLD: Tensor, positions_BL: Tensor, attend: Attend) -> Tensor:
        turned = {}
        if (rotary := self.rotary[0]) is not None:
            turned["position_embeddings"] = rotary(states_BLD, position_ids=positions_BL, **self._told)
        out = self.layer(states_BLD, attention_mask=None, attend=attend, **turned)
        found: Tensor = out[0] if isinstance(out, tuple) else out
        return found

    def bias_by_distance(self, distances: Tensor) -> None:
        """None: there are no relative positions."""

    def shape(self, width: int) -> LayerShape:
        """The heads of its attention, seen in a run of one entry; sublayers that only it knows are left out."""
        seen: list[tuple[Tensor, Tensor, Tensor]] = []

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            seen.append((query, key, value))
            return query.new_zeros(*query.shape[:3], value.shape[-1])

        weight = next(self.layer.parameters())
        with torch.no_grad():
            self(weight.new_zeros(1, 1, width), torch.zeros(1, 1, dtype=torch.long, device=weight.device), attend)
        ((query, key, value),) = seen
        scales = {float(module.scaling) for module in self.layer.modules() if hasattr(module, "scaling")}
        (scale,) = scales or {query.shape[-1] ** -0.5}
        return LayerShape(
            width, 0, query.shape[1], key.shape[1], query.shape[-1], "", 0.0, "", False, False,
            "learned" if self.rotary[0] is None else "rotary", scale, False, value_width=value.shape[-1],
        )  # fmt: skip


class Mtp(Eagle):
    """One depth. `bind` connects it to the target's head and embeddings."""

    layer: FamilyLayer  # type: ignore[assignment]  # in place of EAGLE's, written out
    KIND, RECIPE, CALLED, FILE = "MTP", "mtp", "heads", "mtp.safetensors"
    FIELD = OURS

    def __init__(self, network: Any, layer: Any, layer_type: str | None = None) -> None:
        """A depth for `network` around `layer`, a decoder layer of its family.

        Raises ValueError if the layer computes what this class does not.
        """
        nn.Module.__init__(self)
        norm, decoder = final_norm(network)[0], network.get_decoder()
        width = network.get_output_embeddings().weight.shape[1]
        rotary = getattr(decoder, "rotary_emb", None)
        if rotary is None and not hasattr(decoder, "wpe"):
            raise ValueError(f"{type(network).__name__} has neither rotary nor learned positions")
        self.enorm, self.hnorm, self.norm = (copy.deepcopy(norm) for _ in range(3))
        self.fc = nn.Linear(2 * width, width, bias=False)
        of_kinds = rotary is not None and "layer_type" in inspect.signature(rotary.forward).parameters
        self.layer = FamilyLayer(layer, rotary, layer_type if of_kinds else None)
        try:
            self.shape = EagleShape(self.layer.shape(width))
        except (NotImplementedError, TypeError, ValueError, KeyError) as error:
            raise ValueError(f"{type(layer).__name__}: {first_line(error)}") from error
        self.embed_tokens = None

    @property
    def borrowed(self) -> dict[str, nn.Module]:
        rotary = self.layer.rotary[0]
        return super().borrowed | ({} if rotary is None else {"borrowed_rotary": rotary})

    def forward(
        self, states_BLD: Tensor, embedded_BLD: Tensor, positions_BL: Tensor, attend: Attend, source: Source | None
    ) -> Tensor:
        joined_BLD = self.fc(torch.cat([self.enorm(embedded_BLD), self.hnorm(states_BLD)], -1))
        predicted: Tensor = self.norm(self.layer(joined_BLD, positions_BL + 1, attend))
        return predicted

    @classmethod
    def recipe_of(cls, facts: Facts) -> str:
        return cls.RECIPE

    @classmethod
    def made(cls, facts: Facts, network: Any) -> "Mtp":
        return cls(network, copy.deepcopy(layer_list(network)[-1]))

    @classmethod
    def start_from(cls, network: Any, key: str) -> "Mtp":
        """A depth to train: its decoder layer and its norm start as the last of `network`.

        The weights of the linear layer that read the embedding start near zero. Raises UserError if the network is more
        than a decoder, or has layers that this file does not run.
        """
        if network.config.is_encoder_decoder:
            raise UserError(f"{key}: mtp is for decoder-only targets; use recipe=eagle")
        try:
            made = cls.made({}, network)
        except ValueError as error:
            raise UserError(f"{key}: mtp cannot be trained for it: {error}; use recipe=eagle") from error
        width = made.fc.weight.shape[0]
        with torch.no_grad():
            for norm in (made.enorm, made.hnorm):
                norm.weight.fill_(1.0)
                if getattr(norm, "bias", None) is not None:
                    norm.bias.fill_(0.0)
            nn.init.normal_(made.fc.weight, std=SMALL * width**-0.5)
            made.fc.weight[:, width:] += torch.eye(width, device=made.fc.weight.device)
        return made


SMALL = 0.05  # of the embedding's part, beside the state's


def each_depth(depths: Sequence[Mtp], features_BTD: Tensor, embedded_BTD: Tensor, steps: int) -> Iterator[Tensor]:
    """The states [B, T, D] of depth 0, 1, ... along whole texts, with all tokens known.

    Entry j of depth k holds what joins the target's state at token j - k and the embedding of token j + 1; entries
    before k have no meaning. These are the places at which `eagle.network.unrolled` has its steps.
    """
    rows, length = embedded_BTD.shape[:2]
    states_BTD = features_BTD
    for ahead, depth in enumerate(depths[:steps]):
        scale = depth.shape.layer.scale

        def attend(query: Tensor, key: Tensor, value: Tensor, scale: float = scale) -> Tensor:
            return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)

        positions_BT = torch.arange(ahead, length, device=embedded_BTD.device).expand(rows, -1)
        states_BTD = depth(states_BTD[:, : length - ahead], embedded_BTD[:, ahead:], positions_BT, attend, None)
        yield F.pad(states_BTD, (0, 0, ahead, 0))
