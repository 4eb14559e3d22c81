"""Differences between the configs and tokenizers of a target and a draft, and whether they matter.

Plain comparison of what the files say (`checkpoint`); nothing is loaded. A draft model of its own was trained with its
own config, so that most differences are no fault: a difference matters if it makes the draft read or write other
tokens, or use positions that it does not have.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from specbench.analysis.findings.checkpoint import Checkpoint

Matters = Literal["yes", "perhaps", "no"]
SHOWN = 3  # tokens that differ
POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
WIDTH = ("hidden_size", "n_embd", "d_model")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
EPSILON = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon")
DTYPE = ("dtype", "torch_dtype")
LAYER_IDS = ("eagle_aux_hidden_state_layer_ids", "target_layer_ids", "taps", "aux_layer_ids")


@dataclass(frozen=True)
class Difference:
    """One thing in which a draft differs from its target."""

    what: str
    target: str
    draft: str
    matters: Matters
    why: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def differences(target: Checkpoint, draft: Checkpoint) -> list[Difference]:
    """The differences, the important ones first."""
    compared = _of_head if is_head(draft) else _of_model
    found = [*compared(target, draft), *_of_both(target, draft)]
    return sorted(found, key=lambda one: ("yes", "perhaps", "no").index(one.matters))


def is_head(draft: Checkpoint) -> bool:
    """Whether a checkpoint is a head on the target, which has no tokenizer and no layers of a whole model."""
    return "model_type" not in draft.config or bool(_facts(draft).keys() & set(LAYER_IDS))


def _facts(draft: Checkpoint) -> dict[str, Any]:
    """The config of a head, with what lies one level down."""
    inner = [one for one in draft.config.values() if isinstance(one, dict)]
    return {key: value for part in (draft.config, *inner) for key, value in part.items()}


def _of_head(target: Checkpoint, draft: Checkpoint) -> Iterator[Difference]:
    """Differences of a head, which reads the target's states."""
    facts, width, layers = _facts(draft), _count(target.config, WIDTH), _count(target.config, LAYERS)
    own = _count(facts, ("target_hidden_size", "width", "hidden_size"))
    if own is not None and width is not None and own != width:
        yield Difference("hidden size", str(width), str(own), "yes", "the head reads states of another width")
    trained_for = facts.get("target") or facts.get("base_model_name_or_path") or facts.get("target_model_name_or_path")
    if trained_for is not None and not _same_place(str(trained_for), target.place):
        yield Difference(
            "target", target.place, str(trained_for), "yes", "the head was trained on the states of this other target"
        )
    if (revision := facts.get("target_revision")) is not None and str(revision) != target.revision:
        known = "–" if target.revision is None else target.revision
        matters: Matters = "perhaps" if target.revision is None else "yes"
        yield Difference("target's revision", known, str(revision), matters, "other weights have other states")
    numbers: list[object] = next((facts[name] for name in LAYER_IDS if isinstance(facts.get(name), list)), [])
    beyond = [one for one in numbers if isinstance(one, int) and layers is not None and one > layers]
    if beyond:
        yield Difference(
            "layers that it reads",
            f"has {layers}",
            ", ".join(map(str, numbers)),
            "yes",
            "the target has no such layers",
        )
    counted = _count(facts, ("num_target_layers",))
    if counted is not None and layers is not None and counted != layers:
        yield Difference("layers of the target", str(layers), str(counted), "yes", "its layer ids are another target's")
    size, rows = facts.get("vocab_size") or facts.get("vocabulary"), target.config.get("vocab_size")
    if isinstance(size, int) and isinstance(rows, int) and size > rows:
        yield Difference("vocabulary", f"{rows:,}", f"{size:,}", "yes", "it was trained for a larger vocabulary")

    yield from _of_own_vocabulary(draft, facts, size or rows)


def _of_own_vocabulary(draft: Checkpoint, facts: Mapping[str, Any], size: object) -> Iterator[Difference]:
    """Differences of a head with fewer tokens than the target, whose table d2t says which these are."""
    own = _count(facts, ("draft_vocab_size",))
    if own is None or not isinstance(size, int) or own == size:
        return
    what = "the head's own vocabulary (d2t)"
    table = None if draft.tensors is None else next(
        (shape for name, shape in draft.tensors.items() if name.rpartition(".")[2] == "d2t"), ()
    )  # fmt: skip
    if table is None:
        yield Difference(what, f"{size:,}", f"{own:,}", "perhaps", "its weights must have the table d2t")
    elif table == ():
        why = "its weights have no table d2t: its ids are not the target's"
        yield Difference(what, f"{size:,}", f"{own:,}", "yes", why)
    elif table[0] != own:
        yield Difference(what, f"{size:,}", f"{own:,}", "yes", f"its table d2t has {table[0]:,} entries")
    else:
        yield Difference(what, f"{size:,}", f"{own:,}", "no", "its table d2t names them; the others are never proposed")


def _of_model(target: Checkpoint, draft: Checkpoint) -> Iterator[Difference]:
    """Differences of a draft model, which has its own tokenizer."""
    encoders = [bool(one.config.get("is_encoder_decoder")) for one in (target, draft)]
    if encoders[0] != encoders[1]:
        why = "only one of them has an encoder: the draft does not continue the target's text"
        has, lacks = "yes", "none"
        yield Difference("encoder", has if encoders[0] else lacks, has if encoders[1] else lacks, "yes", why)
    yield from _of_tokens(target, draft)
    if target.template != draft.template:
        both = target.template is not None and draft.template is not None
        why = "the draft was trained on conversations that are written in another way"
        if draft.template is None:
            why = "the draft has none: it may never have read conversations"
        yield Difference(
            "chat template", _there(target.template), _there(draft.template), "yes" if both else "perhaps", why
        )
    for what, key in (("beginning of a text (BOS)", "bos_token"), ("end of a text (EOS)", "eos_token")):
        ours, theirs = _special(target, key), _special(draft, key)
        if ours != theirs:
            why = "the draft expects another token there" if key == "bos_token" else "the draft ends at another token"
            yield Difference(what, ours, theirs, "yes", why)
    for key in ("add_bos_token", "add_eos_token"):
        adds, other = target.tokenizer.get(key), draft.tokenizer.get(key)
        if adds != other and (adds or other):
            why = (
                "one begins each text with BOS and the other does not"
                if "bos" in key
                else "one ends each text with EOS"
            )
            yield Difference(key, str(adds), str(other), "yes", why)
    rows, own = target.config.get("vocab_size"), draft.config.get("vocab_size")
    if rows != own:
        known = target.tokens is not None and target.tokens == draft.tokens
        why = "rows without a token: padding" if known else "their tokens differ"
        yield Difference("rows of the embeddings", str(rows), str(own), "no" if known else "perhaps", why)


def _of_tokens(target: Checkpoint, draft: Checkpoint) -> Iterator[Difference]:
    if target.tokens is None or draft.tokens is None or target.tokens == draft.tokens:
        pass
    else:
        both = target.tokens.keys() & draft.tokens.keys()
        moved = sorted(token for token in both if target.tokens[token] != draft.tokens[token])
        said = f"{len(draft.tokens):,}, {len(both):,} of them the target's"
        if moved:
            said += f", {len(moved):,} with another id ({', '.join(map(repr, moved[:SHOWN]))})"
        why = "tokens of one id are others: the draft reads and writes another text" if moved else (
            "the draft cannot propose the target's other tokens"
        )  # fmt: skip
        yield Difference("tokens", f"{len(target.tokens):,}", said, "yes", f"{why} (docs/models.md)")
    if target.added != draft.added:
        odd = [
            number
            for number in target.added.keys() | draft.added.keys()
            if target.added.get(number) != draft.added.get(number)
        ]
        names = [
            f"{number}: {target.added.get(number, '–')} / {draft.added.get(number, '–')}" for number in sorted(odd)
        ]
        why = f"{'; '.join(names[:SHOWN])}{' …' if len(names) > SHOWN else ''}"
        yield Difference("added tokens", str(len(target.added)), str(len(draft.added)), "yes", why)


def _of_both(target: Checkpoint, draft: Checkpoint) -> Iterator[Difference]:
    """Differences of positions and numbers, of models and heads."""
    ours, theirs = _count(target.config, POSITIONS), _count(draft.config, POSITIONS)
    if ours is not None and theirs is not None and theirs < ours:
        yield Difference("positions", f"{ours:,}", f"{theirs:,}", "yes", f"nothing is accepted past {theirs:,} tokens")
    rope, own = _rope(target), _rope(draft)
    for name in rope.keys() | own.keys():
        if rope and own and rope.get(name) != own.get(name):
            yield _of_rope(name, rope.get(name), own.get(name))
    window, other = _window(target), _window(draft)
    if window != other:
        why = "past the shorter window the draft reads less, or more, than it was trained with"
        yield Difference("sliding window", window, other, "perhaps", why)
    rest: tuple[tuple[str, Callable[[Checkpoint], object], str], ...] = (
        ("tied embeddings", lambda one: one.config.get("tie_word_embeddings"), "check that its weights have its head"),
        ("norm epsilon", lambda one: _first(one.config, EPSILON), "each was trained with its own"),
        ("dtype", lambda one: _first(one.config, DTYPE), "both are computed in the run's dtype"),
    )  # fmt: skip
    for what, of, why in rest:
        if of(target) != of(draft) and of(draft) is not None:
            yield Difference(what, _shown(of(target)), _shown(of(draft)), "no", why)


def _of_rope(name: str, ours: object, theirs: object) -> Difference:
    what = {"rope_type": "RoPE type", "rope_theta": "RoPE base"}.get(name, f"RoPE {name}")
    if name == "rope_theta":
        return Difference(
            what, _shown(ours), _shown(theirs), "perhaps",
            "right for a draft that was trained with it; a copy of the target's layers needs the target's",
        )  # fmt: skip
    why = "without the target's scaling the draft is accepted less the longer the context"
    return Difference(what, _shown(ours), _shown(theirs), "perhaps", why)


def _rope(one: Checkpoint) -> dict[str, object]:
    """The type, base and scaling of rotary positions; empty without them."""
    nested = one.config.get("rope_parameters") or one.config.get("rope_scaling") or {}
    if not isinstance(nested, dict):
        return {}
    found = {name: value for name, value in nested.items() if isinstance(value, str | int | float)}
    found["rope_type"] = nested.get("rope_type") or nested.get("type") or "default"
    found.pop("type", None)
    base = nested.get("rope_theta", one.config.get("rope_theta"))
    if base is None and not nested:
        return {}
    return found | {"rope_theta": float(base) if isinstance(base, int | float) else base}


def _window(one: Checkpoint) -> str:
    """The sliding window, and how many layers have it."""
    window, layers = one.config.get("sliding_window"), one.config.get("layer_types")
    if not isinstance(window, int) or not window or one.config.get("use_sliding_window") is False:
        return "none"
    if isinstance(layers, list):
        sliding = sum("sliding" in str(kind) for kind in layers)
        return f"{window:,} in {sliding} of {len(layers)} layers" if sliding else "none"
    return f"{window:,}"


def _special(one: Checkpoint, key: str) -> str:
    """A special token, with its id if the configs have one."""
    token = one.tokenizer.get(key)
    text = token.get("content") if isinstance(token, dict) else token
    number = one.generation.get(f"{key}_id", one.config.get(f"{key}_id"))
    return (
        "–" if text is None and number is None else " ".join(str(part) for part in (text, number) if part is not None)
    )


def _same_place(trained_for: str, place: str) -> bool:
    """Whether two names are of one folder or repository."""
    return trained_for.rstrip("/").rpartition("/")[2] == place.rstrip("/").rpartition("/")[2]


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)


def _count(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The first whole number under one of `names`."""
    return next((value for name in names if isinstance(value := config.get(name), int) and value), None)


def _there(template: str | None) -> str:
    return "none" if template is None else f"{len(template):,} characters"


def _shown(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)
