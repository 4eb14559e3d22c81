"""vLLM: `--speculative-config`, a JSON object (`vllm/config/speculative.py`)."""

import json

from specbench.interop.serving.settings.base import (
    ENCODER_DECODER,
    LOOKUP_DIFFERS,
    Recommended,
    ServingEngine,
    Settings,
    require_rule,
    shell,
    weights_of_draft,
)

RULES = {"exact": "standard", "onehot": "standard", "block": "block"}
MOST_SEQUENCES = 1024  # where a schedule's last span has no end: past vLLM's default of concurrent sequences


def settings(wanted: Recommended) -> Settings:
    """`vllm serve` with its speculative config."""
    require_rule(wanted, "vLLM", tuple(RULES))
    config: dict[str, object] = {}
    notes = []
    if wanted.kind == "lookup":
        config |= {"method": "ngram", "prompt_lookup_max": wanted.options.get("match", 3), "prompt_lookup_min": 1}
        notes.append(LOOKUP_DIFFERS)
    else:
        draft = weights_of_draft(wanted, "vLLM")
        config |= {"method": "draft_model", "model": draft.place}
        if draft.revision:
            config["revision"] = draft.revision
        if wanted.temperature > 0 and wanted.rule == "onehot":
            config["draft_sample_method"] = "greedy"
        elif wanted.temperature > 0:
            config["draft_sample_method"] = "probabilistic"
            notes.append("draft_sample_method: the default drafts the argmax, whose α at T>0 is that of accept=onehot")
    config["num_speculative_tokens"] = wanted.longest
    if RULES[wanted.rule] != "standard":
        config["rejection_sample_method"] = RULES[wanted.rule]
    if wanted.schedule:
        config["num_speculative_tokens_per_batch_size"] = [
            [span.first, span.last or MOST_SEQUENCES, span.gamma] for span in wanted.schedule
        ]
        notes.append("the schedule is off under data parallelism, and documented for EAGLE drafts and DFlash")
    if wanted.encoder_decoder:
        notes.append(ENCODER_DECODER.format(engine="vLLM"))
    command = [["vllm", "serve", wanted.target.place]]
    if wanted.target.revision:
        command.append(["--revision", wanted.target.revision])
    command.append(["--speculative-config", json.dumps(config)])
    return Settings(shell(*command), {"--speculative-config": config}, notes=notes)


ENGINE = ServingEngine(
    "vllm",
    "vLLM",
    "main at 002e77c1f (vllm/config/speculative.py)",
    "https://docs.vllm.ai/en/latest/features/speculative_decoding/",
    settings,
)
