"""The settings of a checkpoint's `generation_config.json`, as options of `sampling`.

`transformers` applies these settings without being asked; a measurement does so with `sampling.from_model=true`, and
says in one line what it leaves out.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar, get_type_hints

from specbench import border
from specbench.border import Unreadable
from specbench.config.checks import check
from specbench.config.model import name_of
from specbench.config.schema import RunConfig, SamplingConfig
from specbench.engine.weights.load import generation_settings, shape_of
from specbench.errors import UserError
from specbench.loading.model_loader import Say

AnyRunConfig = TypeVar("AnyRunConfig", bound=RunConfig)
# Settings that change completions and have no option, with the values that change nothing.
WITHOUT_OPTION: Mapping[str, tuple[Any, ...]] = {
    "begin_suppress_tokens": ([],), "forced_eos_token_id": (), "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,), "typical_p": (1,), "epsilon_cutoff": (0,), "eta_cutoff": (0,), "top_h": (),
    "exponential_decay_length_penalty": (), "guidance_scale": (1,), "forced_decoder_ids": ([],), "num_beams": (1,),
    "penalty_alpha": (0,), "watermarking_config": (),
}  # fmt: skip
OPTIONS: Mapping[str, tuple[str, tuple[Any, ...]]] = {  # by their names there; and what changes nothing
    "repetition_penalty": ("repetition_penalty", (1,)), "no_repeat_ngram_size": ("no_repeat_ngram_size", (0,)),
    "bad_words_ids": ("bad_words_ids", ([],)), "min_new_tokens": ("min_new_tokens", (0,)),
    "suppress_tokens": ("suppress_tokens", ([],)), "stop_strings": ("stop", ([],)),
}  # fmt: skip
DRAWN: Mapping[str, tuple[Any, ...]] = {"top_k": (0,), "top_p": (1,), "min_p": (0,)}  # apply with do_sample=true


def settings_of(found: Mapping[str, Any], is_encoder_decoder: bool) -> tuple[dict[str, Any], list[str]]:
    """The options of `sampling` that a generation config asks for, and its settings without an option, as it has them.

    Without `do_sample` it is greedy, whatever its temperature, as in `transformers`.
    """
    options: dict[str, Any] = {}
    others = [f"{name}={found[name]}" for name, off in WITHOUT_OPTION.items() if _is_set(found, name, off)]
    if found.get("do_sample") is True:
        options["temperature"] = 1.0 if found.get("temperature") is None else found["temperature"]
        options |= {name: found[name] for name, off in DRAWN.items() if _is_set(found, name, off)}
    for name, (option, off) in OPTIONS.items():
        if _is_set(found, name, off):
            options[option] = [found[name]] if option == "stop" and isinstance(found[name], str) else found[name]
    if _is_set(found, "min_length", (0,)):  # counts the start token, and a decoder-only model's prompt
        if is_encoder_decoder:
            options.setdefault("min_new_tokens", found["min_length"] - 1)
        else:
            others.append(f"min_length={found['min_length']}")
    if is_encoder_decoder and _is_set(found, "forced_bos_token_id", ()):  # only directly after a start token
        options["forced_tokens"] = [found["forced_bos_token_id"]]
    biases = found.get("sequence_bias") or []
    biases = [[ids, by] for ids, by in (biases.items() if isinstance(biases, dict) else biases)]
    if biases and all(isinstance(ids, list) and len(ids) == 1 for ids, _ in biases):
        options["logit_bias"] = [f"{ids[0]}:{by}" for ids, by in biases]
    elif biases:
        others.append("sequence_bias")
    return options, others


def _is_set(found: Mapping[str, Any], name: str, off: tuple[Any, ...]) -> bool:
    return found.get(name) is not None and found[name] not in off


def _asked(config: RunConfig) -> tuple[dict[str, Any], list[str]]:
    """`settings_of` the target of `config`. Raises UserError if they have the wrong form."""
    found = generation_settings(config.target, "target")
    if not found:
        return {}, []
    try:
        return settings_of(found, bool(shape_of(config.target, "target").is_encoder_decoder))
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"target: generation_config.json of {name_of(config.target)} cannot be read: {error}"
        ) from error


def with_settings_of_model(config: AnyRunConfig, note: Say) -> AnyRunConfig:
    """`config` with what its target asks for, if it sets nothing itself; with sampling.from_model=false as it is.

    `note` receives the options. Raises UserError if the result is no valid config.
    """
    if not config.sampling.from_model:
        return config
    given = config.sampling.chosen()
    taken = {name: value for name, value in _asked(config)[0].items() if name not in given}
    found = replace(config, sampling=replace(config.sampling, from_model=False, **taken))
    kinds = get_type_hints(SamplingConfig)
    try:
        for option, value in taken.items():
            border.check(value, kinds[option])
        check(found)
    except (Unreadable, TypeError) as error:
        name = name_of(config.target)
        raise UserError(f"sampling.from_model: generation_config.json of {name} cannot be applied: {error}") from error
    note(f"sampling.from_model=true: {_words(taken) or 'the target asks for nothing'}")
    return found


def unapplied(config: RunConfig) -> str | None:
    """A line on the target's settings that this config leaves out; None if it leaves out none."""
    try:
        options, others = _asked(config)
    except UserError as error:  # which a run that applies none of it needs not
        return f"{error}; nothing of it is applied, and texts end where config.json or the tokenizer says"
    plain = SamplingConfig()
    missing = {
        name: value
        for name, value in options.items()
        if name not in config.sampling.chosen()
        and getattr(config.sampling, name) == getattr(plain, name)
        and value != getattr(plain, name)
    }
    if not missing and not others:
        return None
    parts = []
    if missing:
        parts.append(f"{_words(missing)} (sampling.from_model=true applies {'it' if len(missing) == 1 else 'them'})")
    if others:
        parts.append(f"{' '.join(others)} (no option applies {'it' if len(others) == 1 else 'them'})")
    return f"generation_config.json of {name_of(config.target)} asks for what is not applied: {'; '.join(parts)}"


def _words(options: Mapping[str, Any]) -> str:
    """Options as they are typed."""
    return " ".join(f"sampling.{name}={_typed(value)}" for name, value in options.items())


def _typed(value: Any) -> str:
    return f"[{','.join(map(_typed, value))}]" if isinstance(value, list) else str(value)
