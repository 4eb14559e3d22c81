"""The tensors of a published EAGLE or EAGLE-3 checkpoint, as `Eagle` names them.

EAGLE's own layout calls the decoder layer `layers.0`, or `midlayer` in EAGLE-3; speculators calls it `layers.0`, and in
EAGLE `transformer`, with `fusion_fc` for `fc`. Token i of the draft vocabulary is token i + d2t[i] of the target's;
t2d says of each of the target's tokens whether it is one of them.

Shapes: N tokens of the draft vocabulary, V the target's logits, D the layer's width.
"""

import re
from typing import Any

import torch
from torch import Tensor, nn

from specbench.errors import UserError
from specbench.models.checkpoint import read_tensors
from specbench.models.eagle import Eagle, EagleShape
from specbench.models.published_eagle import PublishedEagle
from specbench.models.weight_files import weight_files

LAYER = r"(?:midlayer|layers\.0|transformer)"
OURS = (
    (re.compile(LAYER + r"\.(hidden_norm|input_layernorm)\.weight"), r"\1.weight"),
    (re.compile(LAYER + r"\.(.+)"), r"layer.\1"),
    (re.compile(r"fusion_fc\.(.+)"), r"fc.\1"),
)
# Buffers of older code, and speculators' copies of the target's weights.
UNUSED = re.compile(r".*rotary_emb\.inv_freq|verifier_norm\.weight|verifier_lm_head\.weight")


def load_published_eagle(made: PublishedEagle, network: Any, taps: tuple[int, ...]) -> Eagle:
    """The checkpoint, bound to `network`, whose states after `taps` layers it reads.

    Raises UserError where a tensor is missing, not known, damaged, or of another shape than the config and the target
    say.
    """
    head = network.get_output_embeddings()
    rows, width = head.weight.shape
    tensors = _tensors(made, head.weight.device)
    kept = _draft_vocabulary(made, tensors, rows) if taps else None
    if not taps:
        tensors.pop("lm_head.weight", None)  # EAGLE's code never reads it: the target's head is used
    _drop_copied_embeddings(tensors, network)
    for name in ("embed_tokens.weight", *(["lm_head.weight"] if taps else [])):
        if name not in tensors and made.layer.hidden_size != width:
            raise UserError(f"{made.key}: {made.source} has no {name}, and the target's width is {width}")
    config = made.config
    norms = {"joint": config.get("norm_before_fc"), "each": config.get("fc_norm")} if made.is_speculators else {}
    shape = EagleShape(
        made.layer_shape("layer.self_attn.q_proj.bias" in tensors), taps,
        vocabulary=None if kept is None else len(kept), own_head="lm_head.weight" in tensors,
        fc_bias="fc.bias" in tensors,
        own_embeddings=len(tensors["embed_tokens.weight"]) if "embed_tokens.weight" in tensors else 0,
        state_width=made.state_width, fuse_norm=next((name for name, on in norms.items() if on), "none"),
        norm_before_residual=bool(config.get("norm_before_residual")), norm_output=bool(config.get("norm_output")),
    )  # fmt: skip
    eagle = Eagle(shape)
    if kept is not None:
        tensors["draft_vocabulary"] = kept
    _require_all(made, eagle, tensors)
    eagle.load_state_dict(tensors)
    return eagle.to(head.weight.device, head.weight.dtype).eval().requires_grad_(False).bind(network)


def _tensors(made: PublishedEagle, device: torch.device) -> dict[str, Tensor]:
    """All tensors by our names."""
    key, source = made.key, made.source
    files = weight_files(source, made.pinned, key)
    if not files:
        raise UserError(f"{key}: {source} has neither model.safetensors nor pytorch_model.bin")
    found = {_our_name(name): tensor for name, tensor in read_tensors(files, source, device, key).items()}
    return {name: tensor for name, tensor in found.items() if not UNUSED.fullmatch(name)}


def _our_name(name: str) -> str:
    for theirs, ours in OURS:
        if (match := theirs.fullmatch(name)) is not None:
            return match.expand(ours)
    return name


def _draft_vocabulary(made: PublishedEagle, tensors: dict[str, Tensor], rows: int) -> Tensor:
    """[N] tokens of the target; takes `d2t` and `t2d` out of `tensors`."""
    further, is_kept = tensors.pop("d2t", None), tensors.pop("t2d", None)
    if is_kept is not None and len(is_kept) != rows:
        raise UserError(f"{made.key}: t2d of {made.source} is of {len(is_kept)} tokens; this target's head has {rows}")
    if further is None:
        size = int(made.config.get("draft_vocab_size") or rows)
        if size != rows:
            made.refuse("draft_vocab_size", size, f"d2t is missing, and the target's head has {rows} rows")
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


def _require_all(made: PublishedEagle, eagle: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Raise UserError at the first tensor that is missing, not known, or of another shape than the config says."""
    expected, key, source = eagle.state_dict(), made.key, made.source
    for name, tensor in expected.items():
        if name not in tensors:
            raise UserError(f"{key}: {source} has no tensor {name}: it is no checkpoint of draft={made.kind}")
        if tensors[name].shape != tensor.shape:
            found, wanted = list(tensors[name].shape), list(tensor.shape)
            raise UserError(f"{key}: {name} of {source} is {found}; its config.json and this target say {wanted}")
    for name in tensors:
        if name not in expected:
            raise UserError(f"{key}: {source} has a tensor {name}, which draft={made.kind} does not support")
