"""Hugging Face `transformers`: assisted generation, and prompt lookup."""

from specbench.interop.serving.settings.base import (
    LOOKUP_DIFFERS,
    Recommended,
    ServingEngine,
    Settings,
    no_schedule,
    require_rule,
    weights_of_draft,
)

LOAD = '{variable} = {auto}.from_pretrained("{place}"{revision})'


def settings(wanted: Recommended) -> Settings:
    """Keywords of `generate`, and for a draft model entries of the draft's own generation config."""
    require_rule(wanted, "transformers")
    call = _sampling(wanted)
    auto = "AutoModelForSeq2SeqLM" if wanted.encoder_decoder else "AutoModelForCausalLM"
    lines = [f"from transformers import {auto}", _load("model", auto, wanted.target.place, wanted.target.revision)]
    if wanted.kind == "lookup":
        call |= {"prompt_lookup_num_tokens": wanted.gamma, "max_matching_ngram_size": wanted.options.get("match", 3)}
        notes = [*no_schedule(wanted, "transformers"), LOOKUP_DIFFERS]
        if wanted.encoder_decoder:
            notes.append("prompt lookup searches the decoder's tokens alone, and draft=lookup the source too")
        lines.append(f"model.generate(**inputs, {_keywords(call)})")
        return Settings("\n".join(lines), {"generate": call}, notes=notes)
    draft = weights_of_draft(wanted, "transformers")
    own = {
        "num_assistant_tokens": wanted.gamma,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    lines.append(_load("assistant", auto, draft.place, draft.revision))
    lines.append(f"assistant.generation_config.update({_keywords(own)})")
    lines.append(f"model.generate(**inputs, assistant_model=assistant, {_keywords(call)})")
    notes = [
        *no_schedule(wanted, "transformers"),
        "the three are read from the draft's generation config; the defaults draft up to 20 tokens and stop below a "
        "confidence of 0.4",
        "one prompt at a time: assisted generation does not support batches",
    ]
    if wanted.encoder_decoder:
        notes.append(
            "with an encoder-decoder give decoder_attention_mask too (ones as long as decoder_input_ids): without it "
            "the draft reads its text twice from the second pass on, and agrees less (5.23)"
        )
    return Settings("\n".join(lines), {"generate": call, "assistant.generation_config": own}, notes=notes)


def _sampling(wanted: Recommended) -> dict[str, object]:
    if wanted.temperature == 0:
        return {"do_sample": False}
    return {
        "do_sample": True, "temperature": wanted.temperature, "top_k": wanted.top_k or 0, "top_p": wanted.top_p or 1.0,
    }  # fmt: skip


def _load(variable: str, auto: str, place: str, revision: str | None) -> str:
    return LOAD.format(
        variable=variable, auto=auto, place=place, revision=f', revision="{revision}"' if revision else ""
    )  # fmt: skip


def _keywords(values: dict[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


ENGINE = ServingEngine(
    "transformers",
    "transformers",
    "5.23.0",
    "https://huggingface.co/docs/transformers/generation_strategies",
    settings,
)
