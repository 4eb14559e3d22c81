"""TensorRT-LLM: `speculative_config` in the YAML file of `trtllm-serve --config`."""

import yaml

from specbench.interop.serving.settings.base import (
    ENCODER_DECODER,
    LOOKUP_DIFFERS,
    NotExpressible,
    Recommended,
    ServingEngine,
    Settings,
    require_rule,
    shell,
    weights_of_draft,
)

FILE = "speculative.yaml"


def settings(wanted: Recommended) -> Settings:
    """Draft_Target for a draft model, NGram for prompt lookup; the PyTorch backend."""
    require_rule(wanted, "TensorRT-LLM")
    config: dict[str, object]
    notes = []
    if wanted.kind == "lookup":
        config = {
            "decoding_type": "NGram",
            "max_draft_len": wanted.longest,
            "max_matching_ngram_size": wanted.options.get("match", 3),
            "is_keep_all": True,
            "is_use_oldest": False,
            "is_public_pool": False,
        }
        notes.append(LOOKUP_DIFFERS)
    else:
        draft = weights_of_draft(wanted, "TensorRT-LLM")
        config = {
            "decoding_type": "Draft_Target", "max_draft_len": wanted.longest, "speculative_model": draft.place,
        }  # fmt: skip
        notes.append("the page calls this type DraftTarget; the class takes Draft_Target")
        if draft.revision:
            notes.append(f"the config has no key for a revision: give a folder that holds {draft.revision[:9]}")
        if wanted.temperature > 0:
            config["use_rejection_sampling"] = True
            notes.append("use_rejection_sampling (a prototype; needs FlashInfer): the default compares drawn tokens")
    if wanted.schedule:
        config["draft_len_schedule"] = _schedule(wanted)
    if wanted.encoder_decoder:
        notes.append(ENCODER_DECODER.format(engine="TensorRT-LLM"))
    values: dict[str, object] = {"speculative_config": config}
    command = shell(["trtllm-serve", wanted.target.place], ["--config", FILE])
    return Settings(command, values, (FILE, yaml.safe_dump(values, sort_keys=False)), notes)


def _schedule(wanted: Recommended) -> dict[int, int]:
    """The last batch size of each span, with its gamma; past the last span nothing is drafted, so it needs an end."""
    if wanted.schedule[0].gamma != wanted.longest:
        raise NotExpressible("TensorRT-LLM drafts the most tokens at the smallest batches; this schedule does not")
    open_ended = wanted.schedule[-1].last is None and wanted.schedule[-1].gamma > 0
    if open_ended:
        raise NotExpressible(
            "TensorRT-LLM drafts nothing past the last batch size of a schedule: give the last span an end"
        )
    return {span.last: span.gamma for span in wanted.schedule if span.last is not None}


ENGINE = ServingEngine(
    "tensorrt-llm",
    "TensorRT-LLM",
    "main at 000439672 (tensorrt_llm/llmapi/llm_args.py)",
    "https://nvidia.github.io/TensorRT-LLM/features/speculative-decoding.html",
    settings,
)
