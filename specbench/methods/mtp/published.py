"""Depths of multi-token prediction that lie in a checkpoint beside its target: where their tensors are.

- DeepSeek-V3 and GLM-4-MoE: decoder layers after the target's last, each with what joins its inputs.
- Qwen3-Next and Mellum: `mtp.`, beside the target's `model.`.

The decoder layer is read by the target's own family in `transformers`, under the names of a layer of the target.
docs/checkpoints.md has the tables.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from specbench.engine.weights.mapped_files import MappedTensor, mapped_weights, weight_files
from specbench.engine.weights.pretrained import part_with
from specbench.engine.weights.published_checkpoint import CONFIG, read_config
from specbench.errors import UserError, first_line
from specbench.methods.mtp.network import Mtp

COUNTED = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")  # fields of config.json: depths


@dataclass(frozen=True)
class Layout:
    """Names of the tensors of a depth; {layer} is the number of its layer after the target's, {depth} its own, from 0.

    Attributes:
        join: ours by theirs, of what joins the inputs and of the norm after the layer.
        block: the beginning of the names of its decoder layer.
        copies: of the target's embeddings and head, which are not read.
    """

    join: Mapping[str, str]
    block: str
    copies: tuple[str, ...]

    @property
    def marker(self) -> str:
        """The tensor that a checkpoint of this layout is recognised by."""
        return next(name for name, ours in self.join.items() if ours == "fc.weight")


LAYOUTS = (
    Layout(
        {
            "model.layers.{layer}.enorm.weight": "enorm.weight",
            "model.layers.{layer}.hnorm.weight": "hnorm.weight",
            "model.layers.{layer}.eh_proj.weight": "fc.weight",
            "model.layers.{layer}.shared_head.norm.weight": "norm.weight",
        },
        "model.layers.{layer}.",
        ("model.layers.{layer}.embed_tokens.weight", "model.layers.{layer}.shared_head.head.weight"),
    ),
    Layout(
        {
            "mtp.pre_fc_norm_embedding.weight": "enorm.weight",
            "mtp.pre_fc_norm_hidden.weight": "hnorm.weight",
            "mtp.fc.weight": "fc.weight",
            "mtp.norm.weight": "norm.weight",
        },
        "mtp.layers.{depth}.",
        ("mtp.embed_tokens.weight", "mtp.shared_head.head.weight"),
    ),
)


@dataclass(frozen=True)
class PublishedMtp:
    """The tensors of a checkpoint's depths.

    `source` is the folder or repository, `key` what the run calls the draft, `file` where tensors are, for messages.
    """

    source: str
    key: str
    file: str
    layout: Layout
    layers: int  # the target's
    depths: int
    tensors: Mapping[str, MappedTensor]

    def name(self, template: str, depth: int) -> str:
        return template.format(layer=self.layers + depth, depth=depth)

    def load(self, network: Any) -> list[Mtp]:
        """The depths, bound to `network`. Raises UserError if a tensor is missing, not known or of another shape."""
        weight = network.get_output_embeddings().weight
        config = _config_of_depths(network, self.depths)
        stack = self._stack(type(network.get_decoder()), config, weight)
        kinds = getattr(config, "layer_types", None) or [None] * self.depths
        depths = []
        for number in range(self.depths):
            try:
                depth = Mtp(network, stack.layers[number], kinds[number]).to(weight.device)
            except ValueError as error:
                raise UserError(f"{self.key}: {self.source}: its heads are not supported: {error}") from error
            for theirs, ours in self.layout.join.items():
                name, own = self.name(theirs, number), depth.get_parameter(ours)
                tensor = self.tensors[name][...] if name in self.tensors else self.lacks(name)
                if tensor.shape != own.shape:
                    self.refuse(f"{name} is {list(tensor.shape)}; this target says {list(own.shape)}")
                own.data = tensor.to(weight.device, weight.dtype)
            depths.append(depth.eval().requires_grad_(False).bind(network))
        return depths

    def lacks(self, name: str) -> NoReturn:
        raise UserError(f"{self.key}: {self.file} of {self.source} has no tensor {name}; draft=mtp requires it")

    def refuse(self, why: str) -> NoReturn:
        raise UserError(f"{self.key}: {self.file} of {self.source}: {why}")

    def _stack(self, family: Any, config: Any, weight: torch.Tensor) -> Any:
        """A decoder of the target's family with the layers of the depths."""
        state = {f"layers.{depth}.{name}": tensor for depth, name, tensor in self._of_layers()}
        try:
            stack, found = part_with(family, config, state, dtype=weight.dtype, device_map={"": weight.device})
        except Exception as error:  # RuntimeError of a shape, ValueError, TypeError, ...
            self.refuse(f"its heads cannot be loaded as a layer of {family.__name__}: {first_line(error, 300)}")
        for kind, message in (
            ("missing_keys", "has no tensor"),
            ("unexpected_keys", "has a tensor that its family does not have,"),
        ):
            names = sorted(name for name in found[kind] if name.startswith("layers."))
            if names:
                _, depth, rest = names[0].split(".", 2)
                name = self.name(self.layout.block, int(depth)) + rest
                raise UserError(f"{self.key}: {self.file} of {self.source} {message} {name}")
        return stack

    def _of_layers(self) -> Iterator[tuple[int, str, MappedTensor]]:
        """Depth, name within its decoder layer, and tensor."""
        for depth in range(self.depths):
            others = {self.name(name, depth) for name in (*self.layout.join, *self.layout.copies)}
            block = self.name(self.layout.block, depth)
            for name, tensor in self.tensors.items():
                if name.startswith(block) and name not in others:
                    yield depth, name.removeprefix(block), tensor


def published_mtp(source: str, pinned: Mapping[str, Any], key: str, target: Any, device: torch.device) -> PublishedMtp:
    """The depths in a folder or a repository, which the keywords `pinned` fix, for a target of the config `target`.

    `key` is the config's name for the draft. Raises UserError if there are none.
    """
    files = weight_files(source, pinned, key)
    if not files:
        raise UserError(f"{key}.path={source}: no weights are there, neither model.safetensors nor pytorch_model.bin")
    try:
        tensors = mapped_weights(files, device)
    except Exception as error:  # SafetensorError, UnpicklingError, ValueError
        raise UserError(f"{key}: {files[0].name} of {source} cannot be read: {first_line(error)}") from error
    file = files[0].name if len(files) == 1 else "model.safetensors.index.json"
    layers = target.get_text_config().num_hidden_layers
    for layout in LAYOUTS:
        made = PublishedMtp(source, key, file, layout, layers, 0, tensors)
        depths = 0
        while any(name.startswith(made.name(layout.block, depths)) for name in tensors):
            depths += 1
        if made.name(layout.marker, 0) in tensors or depths:
            _require_count(made, read_config(source, pinned, key), depths)
            return PublishedMtp(source, key, file, layout, layers, depths, tensors)
    markers = " or ".join(made.name(layout.marker, 0) for layout in LAYOUTS)
    raise UserError(f"{key}: {file} of {source} has no multi-token prediction: no tensor {markers}; use another draft")


def _require_count(made: PublishedMtp, config: Mapping[str, Any], depths: int) -> None:
    """Raise UserError if the weights have no decoder layer, or another number of depths than the config says."""
    if depths == 0:
        made.lacks(made.name(made.layout.block, 0) + "*")
    if depths > 1 and "{layer}" not in made.layout.marker:
        made.refuse(f"{made.name(made.layout.block, 1)}*: only one depth is supported in this layout")
    for name in COUNTED:
        told = config.get(name)
        if told is not None and told != depths:
            raise UserError(
                f"{made.key}: {CONFIG} of {made.source}: {name}={told}, but {made.file} has {depths} such layers"
            )


def _config_of_depths(network: Any, depths: int) -> Any:
    """The config of a decoder that has these depths for layers, and no vocabulary."""
    own = network.get_decoder().config
    config = own.get_mtp_config() if getattr(own, "num_mtp_layers", None) else copy.deepcopy(own)
    kinds = getattr(config, "layer_types", None)
    if kinds and (config.num_hidden_layers != depths or "linear_attention" in kinds):
        config.layer_types = ["full_attention"] * depths  # heads have full attention, whatever the target's layers
    config.num_hidden_layers, config.vocab_size, config.pad_token_id = depths, 1, None
    return config
