"""EAGLE's and EAGLE-3's checkpoints in the layouts that others publish: what their `config.json` says.

- EAGLE's own (github.com/SafeAILab/EAGLE): the config of one Llama layer. EAGLE-3 adds `draft_vocab_size`.
- speculators' (github.com/vllm-project/speculators): `speculators_model_type`, and the layer under
  `transformer_layer_config`.

docs/checkpoints.md has all fields. `published_eagle_weights` reads the tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from transformers import AutoConfig, LlamaConfig, PretrainedConfig
from transformers.activations import ACT2FN

from specbench.errors import UserError, first_line
from specbench.models.checkpoint import CONFIG, read_config
from specbench.models.eagle_layer import LayerShape
from specbench.models.rotary import ROTATIONS, rotation

SPECULATORS = "speculators_model_type"
KINDS = ("eagle", "eagle3")
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
        """eagle, or eagle3."""
        if self.is_speculators:
            return str(self.config[SPECULATORS])
        names = " ".join(self.config.get("architectures") or [])
        return "eagle3" if "draft_vocab_size" in self.config or "eagle3" in names.lower() else "eagle"

    @property
    def made_for(self) -> str:
        """The target that the config names, or a word for it."""
        verifier = (self.config.get("speculators_config") or {}).get("verifier") or {}
        return str((isinstance(verifier, dict) and verifier.get("name_or_path")) or "another target")

    @property
    def state_width(self) -> int:
        """The width of the target that it was made for."""
        return int(self.config.get("target_hidden_size") or self.layer.hidden_size)

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

        Raises:
            UserError: it has another; the message names the field.
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
        layer = self.layer
        head = getattr(layer, "head_dim", None) or layer.hidden_size // layer.num_attention_heads
        theta, angles = self._rotation()
        return LayerShape(
            layer.hidden_size, layer.intermediate_size, layer.num_attention_heads, layer.num_key_value_heads, head,
            "rms", layer.rms_norm_eps, layer.hidden_act, True, bias, "rotary", head**-0.5, False, theta=theta,
            angles=angles, head_norms=layer.model_type == "qwen3",
        )  # fmt: skip

    def _rotation(self) -> tuple[float, tuple[float, ...]]:
        """The base of its rotary angles, and the angles where a rule scales them."""
        try:
            return rotation(self.layer)
        except ValueError as error:
            self.refuse("rope_scaling", error, f"only {', '.join(ROTATIONS)}")

    def refuse(self, name: str, value: object, why: str) -> NoReturn:
        """Raise UserError for a field of the config."""
        raise UserError(f"{self.key}: {CONFIG} of {self.source}: {name}={value}: {why}")


def published_eagle(source: str, pinned: Mapping[str, Any], key: str, ours: str) -> PublishedEagle | None:
    """The config of a published checkpoint, or None.

    None where `source` has no such config, or one with the field `ours` of our own layout. Raises UserError for what is
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
        made.refuse(SPECULATORS, made.kind, "only eagle and eagle3 are supported")
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
    if made.is_speculators:
        if layer.num_hidden_layers != 1:  # EAGLE's own configs say anything here, and mean one
            made.refuse("num_hidden_layers", layer.num_hidden_layers, "only one decoder layer is supported")
        if "sliding_attention" in (config["transformer_layer_config"].get("layer_types") or []):
            made.refuse("layer_types", "sliding_attention", "only full attention is supported")
        if config.get("layernorms"):
            made.refuse("layernorms", True, "which of its norms comes before what is fed back is not documented")
        if made.kind == "eagle3" and "norm_before_residual" not in config:
            made.refuse("norm_before_residual", None, "speculators reads false, vLLM true: write one into the file")
    elif (config.get("eagle_config") or {}).get("use_aux_hidden_state") is False:
        made.refuse("use_aux_hidden_state", False, "EAGLE-3 without states of three depths is not supported")
