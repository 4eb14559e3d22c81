"""EAGLE's and EAGLE-3's checkpoints in the layouts that others publish: what their `config.json` says.

- EAGLE's own (github.com/SafeAILab/EAGLE): the config of one Llama layer. EAGLE-3 adds `draft_vocab_size`.
- speculators' (github.com/vllm-project/speculators): `speculators_model_type`, and the layer under
  `transformer_layer_config`.

docs/checkpoints.md has all fields. Shapes: N tokens of the draft vocabulary.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor
from transformers import AutoConfig, LlamaConfig, PretrainedConfig
from transformers.activations import ACT2FN

from specbench.engine.weights.published_checkpoint import CONFIG, read_config, read_weights, require_all
from specbench.errors import UserError, first_line
from specbench.methods.decoder_layer import ROTATIONS, LayerShape, llama_shape, rotation
from specbench.methods.eagle.network import Eagle, EagleShape

SPECULATORS = "speculators_model_type"
KINDS = ("eagle", "eagle3", "peagle")
MASKS = ("mask_token_id", "ptd_token_id", "pard_token")  # fields of P-EAGLE: the token for tokens not known yet
LAYERS = ("llama", "qwen3")  # whose decoder layers speculators' EAGLE-3 is made of
FIELDS = (  # that are read of a layer; others, copied from the target's config, need not go together with them
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "hidden_act", "rms_norm_eps", "vocab_size", "max_position_embeddings", "rope_theta", "rope_scaling",
    "rope_parameters", "partial_rotary_factor",
)  # fmt: skip
TYPES: dict[str, type] = {
    "architectures": list, "eagle_config": dict, "speculators_config": dict, "transformer_layer_config": dict,
    "draft_vocab_size": int, "target_hidden_size": int, "eagle_aux_hidden_state_layer_ids": list,
}  # fmt: skip
FEWEST_LAYERS = 7  # of a target whose second, middle and third last layers differ


@dataclass(frozen=True)
class PublishedEagle:
    """The config of a checkpoint.

    `source` is a folder or a repository, which the keywords `pinned` fix; `key` is what the run calls the draft, for
    messages.
    """

    source: str
    pinned: Mapping[str, Any]
    key: str
    config: Mapping[str, Any]
    layer: PretrainedConfig  # of its decoder layer

    @property
    def is_speculators(self) -> bool:
        return SPECULATORS in self.config

    @property
    def kind(self) -> str:
        """eagle, eagle3, or peagle."""
        if self.is_speculators:
            return str(self.config[SPECULATORS])
        if self.mask[1] is not None:
            return "peagle"
        names = " ".join(self.config.get("architectures") or [])
        return "eagle3" if "draft_vocab_size" in self.config or "eagle3" in names.lower() else "eagle"

    @property
    def mask(self) -> tuple[str, Any]:
        """P-EAGLE's token for tokens not known yet: the field that says it, and what it says."""
        given = [name for name in MASKS if self.config.get(name) is not None] or [MASKS[0]]
        return given[0], self.config.get(given[0])

    @property
    def made_for(self) -> str:
        """The target that the config names, or a word for it."""
        verifier = (self.config.get("speculators_config") or {}).get("verifier") or {}
        return str((isinstance(verifier, dict) and verifier.get("name_or_path")) or "another target")

    @property
    def state_width(self) -> int:
        """The width of the target that it was made for."""
        return int(self.config.get("target_hidden_size") or self.layer.hidden_size)

    @property
    def fc_bias(self) -> bool | None:
        """Whether the first linear layer has a bias, by the config or the layout; None if neither says so."""
        if self.kind != "eagle":
            return False
        told = self.config.get("fusion_bias", False) if self.is_speculators else self.config.get("bias")
        return None if told is None else bool(told)

    def taps(self, layers: int) -> tuple[int, ...]:
        """After how many of the target's `layers` the states are that it reads; none of EAGLE.

        EAGLE's code and vLLM take the states that the layers numbered 2, L // 2 and L - 3, from 0, read, and
        speculators' ids number them so. Ids within `eagle_config` name the layer that wrote the state (SGLang adds 1).
        """
        if self.kind == "eagle":
            return ()
        name = "eagle_aux_hidden_state_layer_ids"
        ids, outputs = self.config.get(name), (self.config.get("eagle_config") or {}).get(name)
        for given in (ids, outputs):
            if given is not None and not (isinstance(given, list) and all(type(one) is int for one in given)):
                self.refuse(name, given, "must be a list of numbers of layers")
        if ids or outputs:
            taps = tuple(ids or [int(one) + 1 for one in outputs or []])
        elif layers < FEWEST_LAYERS:
            self.refuse(name, None, f"without it the target must have {FEWEST_LAYERS} layers, and it has {layers}")
        else:
            taps = (2, layers // 2, layers - 3)
        if not 0 <= min(taps) <= max(taps) <= layers:
            self.refuse(name, ids or outputs, f"made for {self.made_for}; this target has {layers} layers")
        return taps

    def require_fits(self, target: Any) -> None:
        """Check that the target's `transformers` config has the shape that the checkpoint was made for.

        Raises UserError if it has another; the message names the field.
        """
        target = target.get_text_config()
        if target.is_encoder_decoder:
            raise UserError(f"{self.key}: {self.source} was made for a decoder-only target; this is an encoder-decoder")
        if self.state_width != target.hidden_size:
            name = "hidden_size" if self.config.get("target_hidden_size") is None else "target_hidden_size"
            self.refuse(name, self.state_width, f"made for {self.made_for}; this target's is {target.hidden_size}")
        if self.layer.vocab_size != target.vocab_size:
            why = f"made for {self.made_for}; this target's is {target.vocab_size}"
            self.refuse("vocab_size", self.layer.vocab_size, why)

    def layer_shape(self, bias: bool) -> LayerShape:
        """`bias`: whether its projections have a bias."""
        try:
            theta, angles = rotation(self.layer)
        except ValueError as error:
            self.refuse("rope_scaling", error, f"only {', '.join(ROTATIONS)}")
        return llama_shape(self.layer, bias, theta=theta, angles=angles, head_norms=self.layer.model_type == "qwen3")

    def refuse(self, name: str, value: object, why: str) -> NoReturn:
        """Raise UserError for a field of the config."""
        raise UserError(f"{self.key}: {CONFIG} of {self.source}: {name}={value}: {why}")


def published_eagle(source: str, pinned: Mapping[str, Any], key: str, ours: str) -> PublishedEagle | None:
    """The config of a published checkpoint, or None.

    None if `source` has no such config, or one with the field `ours` of our own layout. Raises UserError for what is
    not supported.
    """
    config = read_config(source, pinned, key)
    if ours in config or not config.keys() & {SPECULATORS, "hidden_size"}:
        return None
    for name, of_type in TYPES.items():
        if (value := config.get(name)) is not None and not isinstance(value, of_type):
            raise UserError(f"{key}: {CONFIG} of {source}: {name}={value}: must be of the type {of_type.__name__}")
    is_speculators = SPECULATORS in config
    told = dict(config.get("transformer_layer_config") or {}) if is_speculators else config
    model_type = str(told.get("model_type", "qwen3")) if is_speculators else "llama"
    made = PublishedEagle(source, pinned, key, config, LlamaConfig())
    if made.kind not in KINDS:
        made.refuse(SPECULATORS, made.kind, f"only {', '.join(KINDS)} are supported")
    if model_type not in LAYERS:
        made.refuse("transformer_layer_config.model_type", model_type, f"only {' and '.join(LAYERS)} are supported")
    try:
        layer = AutoConfig.for_model(model_type, **{name: told[name] for name in FIELDS if told.get(name) is not None})
    except Exception as error:  # TypeError, ValueError, StrictDataclassError: fields of other types
        raise UserError(f"{key}: {CONFIG} of {source} describes no decoder layer: {first_line(error)}") from error
    made = PublishedEagle(source, pinned, key, config, layer)
    _require_supported(made)
    return made


def _require_supported(made: PublishedEagle) -> None:
    """Raise UserError at the first field whose meaning is not implemented."""
    config, layer = made.config, made.layer
    if layer.hidden_act not in ACT2FN:
        made.refuse("hidden_act", layer.hidden_act, "transformers has no such activation")
    name, mask = made.mask
    if made.kind == "peagle" and not (type(mask) is int and 0 <= mask < layer.vocab_size):
        made.refuse(name, mask, "P-EAGLE's token for tokens not known yet must be a number of one")
    if made.is_speculators:
        if layer.num_hidden_layers != 1 and made.kind != "peagle":  # EAGLE's own configs say anything, and mean one
            made.refuse("num_hidden_layers", layer.num_hidden_layers, "only one decoder layer is supported")
        if "sliding_attention" in (config["transformer_layer_config"].get("layer_types") or []):
            made.refuse("layer_types", "sliding_attention", "only full attention is supported")
        if config.get("layernorms"):
            made.refuse("layernorms", True, "which of its norms comes before what is fed back is not documented")
        if made.kind != "eagle" and "norm_before_residual" not in config:
            made.refuse("norm_before_residual", None, "speculators reads false, vLLM true: write one into the file")
    elif made.kind == "eagle" and type(config.get("bias", True)) is not bool:
        made.refuse("bias", config["bias"], "must be true or false: whether there is fc.bias")
    elif (config.get("eagle_config") or {}).get("use_aux_hidden_state") is False:
        made.refuse("use_aux_hidden_state", False, "EAGLE-3 without states of three depths is not supported")


# EAGLE's own layout calls the decoder layer `layers.0`, or `midlayer` in EAGLE-3; speculators calls it `layers.0`, and
# in EAGLE `transformer`, with `fusion_fc` for `fc`. Token i of the draft vocabulary is token i + d2t[i] of the
# target's; t2d says of each of the target's tokens whether it is one of them.
LAYERS_OF_FILES = ("midlayer", "layers.0", "transformer")
LAYER = rf"(?:{'|'.join(map(re.escape, LAYERS_OF_FILES))})"
OURS = (
    (re.compile(LAYER + r"\.(hidden_norm|input_layernorm)\.weight"), r"\1.weight"),
    (re.compile(LAYER + r"\.(.+)"), r"layer.\1"),
    (re.compile(r"fusion_fc\.(.+)"), r"fc.\1"),
)
# Buffers of older code, and speculators' copies of the target's weights.
UNUSED = re.compile(r".*rotary_emb\.inv_freq|verifier_norm\.weight|verifier_lm_head\.weight")


def load_published_eagle(made: PublishedEagle, network: Any, taps: tuple[int, ...]) -> Eagle:
    """The checkpoint, bound to `network`, whose states after `taps` layers it reads.

    Raises UserError if a tensor is missing, not known, damaged, or of another shape than the config and the target
    say.
    """
    shape, tensors, layer = published_state(made, network, taps)
    return filled(made, Eagle(shape), tensors, network, partial(their_name, made, layer))


def published_state(
    made: PublishedEagle, network: Any, taps: tuple[int, ...]
) -> tuple[EagleShape, dict[str, Tensor], str]:
    """The shape of the first layer, the state dict with this package's parameter names, and the layer's name there."""
    head = network.get_output_embeddings()
    rows, width = head.weight.shape
    tensors, layer = _tensors(made, head.weight.device)
    kept = _draft_vocabulary(made, tensors, rows) if taps else None
    if not taps:
        tensors.pop("lm_head.weight", None)  # EAGLE's code never reads it: the target's head is used
    _require_stated(made, tensors, is_short=kept is not None and kept.tolist() != list(range(rows)))
    _drop_copied_embeddings(tensors, network)
    for name in ("embed_tokens.weight", *(["lm_head.weight"] if taps else [])):
        if name not in tensors and made.layer.hidden_size != width:
            raise UserError(f"{made.key}: {made.source} has no {name}, and the target's width is {width}")
    config = made.config
    norms = {"joint": config.get("norm_before_fc"), "each": config.get("fc_norm")} if made.is_speculators else {}
    shape = EagleShape(
        made.layer_shape(any(f"layer.self_attn.{name}_proj.bias" in tensors for name in "qkv")), taps,
        vocabulary=None if kept is None else len(kept), own_head="lm_head.weight" in tensors,
        fc_bias=made.fc_bias if made.fc_bias is not None else "fc.bias" in tensors,
        own_embeddings=len(tensors["embed_tokens.weight"]) if "embed_tokens.weight" in tensors else 0,
        state_width=made.state_width, fuse_norm=next((name for name, on in norms.items() if on), "none"),
        norm_before_residual=bool(config.get("norm_before_residual")), norm_output=bool(config.get("norm_output")),
    )  # fmt: skip
    if kept is not None:
        tensors["draft_vocabulary"] = kept
    return shape, tensors, layer


def _require_stated(made: PublishedEagle, tensors: Mapping[str, Tensor], is_short: bool) -> None:
    """Check the tensors that some checkpoints of these layouts have and others have not.

    Which of the two a checkpoint is must not follow from a tensor that was lost. `is_short`: its vocabulary is a part
    of the target's. Raises UserError for a tensor that this one must have.
    """
    must = []
    if made.kind == "eagle" and not made.is_speculators:  # EAGLE's code loads every tensor, or fails
        must += ["fc.weight", "embed_tokens.weight"]
        if made.fc_bias is None and "fc.bias" not in tensors and "fc.weight" in tensors:
            made.refuse(
                "bias", None, "there is no fc.bias; EAGLE's code reads true, vLLM's false: write one into the file"
            )
    if made.kind != "eagle" and (is_short or "draft_vocab_size" in made.config):
        must.append("lm_head.weight")  # with a draft vocabulary comes a head of its own
    for name in must:
        if name not in tensors:
            raise UserError(f"{made.key}: {made.source} has no tensor {name}: it is no checkpoint of draft={made.kind}")


Layer = TypeVar("Layer", bound=Eagle)


def filled(
    made: PublishedEagle, eagle: Layer, tensors: dict[str, Tensor], network: Any, theirs: Callable[[str], str]
) -> Layer:
    """`eagle` with these tensors, bound to `network`; `theirs` says what the files call a tensor.

    Raises UserError at one that does not fit.
    """
    require_all(eagle.state_dict(), tensors, theirs, made.key, made.source, made.kind)
    eagle.load_state_dict(tensors)
    weight = network.get_output_embeddings().weight
    return eagle.to(weight.device, weight.dtype).eval().requires_grad_(False).bind(network)


def _tensors(made: PublishedEagle, device: torch.device) -> tuple[dict[str, Tensor], str]:
    """The state dict with this package's parameter names, on `device`, and what its files call the first layer."""
    read = read_weights(made.source, made.pinned, made.key, device)
    usual = "transformer" if made.is_speculators else "midlayer"
    layers = (usual if made.kind == ("eagle" if made.is_speculators else "eagle3") else "layers.0", *LAYERS_OF_FILES)
    layer = next((one for one in layers if any(name.startswith(f"{one}.") for name in read)), layers[0])
    found = {_our_name(name): tensor for name, tensor in read.items()}
    return {name: tensor for name, tensor in found.items() if not UNUSED.fullmatch(name)}, layer


def _our_name(name: str) -> str:
    for theirs, ours in OURS:
        if (match := theirs.fullmatch(name)) is not None:
            return match.expand(ours)
    return name


def their_name(made: PublishedEagle, layer: str, ours: str) -> str:
    """The name of a tensor in files that call the decoder layer `layer`: what `_our_name` makes `ours` of."""
    if ours in ("hidden_norm.weight", "input_layernorm.weight"):
        return f"{layer}.{ours}"
    if ours.startswith("fc.") and made.is_speculators and made.kind == "eagle":
        return f"fusion_{ours}"
    return f"{layer}.{ours.removeprefix('layer.')}" if ours.startswith("layer.") else ours


def _draft_vocabulary(made: PublishedEagle, tensors: dict[str, Tensor], rows: int) -> Tensor:
    """[N] tokens of the target; takes `d2t` and `t2d` out of `tensors`."""
    further, is_kept = tensors.pop("d2t", None), tensors.pop("t2d", None)
    if is_kept is not None and len(is_kept) != rows:
        raise UserError(f"{made.key}: t2d of {made.source} is of {len(is_kept)} tokens; this target's head has {rows}")
    if further is None:
        size = int(made.config.get("draft_vocab_size") or rows)
        if size != rows:
            made.refuse("draft_vocab_size", size, f"d2t is missing, and the target's head has {rows} rows")
        if is_kept is not None and not bool(is_kept.bool().all()):
            raise UserError(
                f"{made.key}: {made.source} has no tensor d2t, though its t2d leaves out tokens of the target"
            )
        return torch.arange(rows)
    kept = torch.arange(len(further)) + further.cpu()
    fits = int(kept.min()) >= 0 and int(kept.max()) < rows and len(kept.unique()) == len(kept)
    if not fits or (is_kept is not None and not torch.equal(kept.sort()[0], is_kept.cpu().nonzero()[:, 0])):
        raise UserError(
            f"{made.key}: d2t of {made.source} names tokens that t2d does not, or that this target, with {rows}, lacks"
        )
    return kept


def _drop_copied_embeddings(tensors: dict[str, Tensor], network: Any) -> None:
    """Checkpoints often repeat the target's embeddings, which are large."""
    own, name = network.get_input_embeddings().weight, "embed_tokens.weight"
    theirs = tensors.get(name)
    if theirs is not None and theirs.shape == own.shape and torch.equal(theirs.to(own.dtype), own):
        del tensors[name]
