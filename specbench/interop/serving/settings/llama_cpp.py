"""llama.cpp: flags of `llama-server`. Models are GGUF files."""

from pathlib import PurePath

from specbench.interop.serving.settings.base import (
    ENCODER_DECODER,
    LOOKUP_DIFFERS,
    Recommended,
    ServingEngine,
    Settings,
    Weights,
    flags,
    no_schedule,
    require_rule,
    shell,
    weights_of_draft,
)


def settings(wanted: Recommended) -> Settings:
    """draft-simple for a draft model, ngram-simple for prompt lookup."""
    require_rule(wanted, "llama.cpp", ("exact", "onehot"))
    values: dict[str, object]
    notes = no_schedule(wanted, "llama.cpp")
    notes += ["FILE.gguf: made from the weights by convert_hf_to_gguf.py; quantised weights have another α"]
    if wanted.kind == "lookup":
        values = {
            "--spec-type": "ngram-simple",
            "--spec-ngram-simple-size-n": wanted.options.get("match", 3),
            "--spec-ngram-simple-size-m": wanted.gamma,
            "--spec-ngram-simple-min-hits": 1,
        }
        notes += [LOOKUP_DIFFERS, "ngram-simple looks for runs of that length only, not for shorter runs after it"]
    else:
        draft = weights_of_draft(wanted, "llama.cpp")
        values = {
            "--model-draft": _gguf(draft),
            "--spec-type": "draft-simple",
            "--spec-draft-n-max": wanted.gamma,
            "--spec-draft-n-min": 0,
            "--spec-draft-p-min": 0,
        }
        if wanted.temperature > 0 and wanted.rule == "exact":
            values["--spec-draft-sampling"] = "probabilistic"
            notes.append(
                "--spec-draft-sampling: the default drafts the argmax, whose α at T>0 is that of accept=onehot"
            )
        notes.append("builds from before --spec-draft-n-max call it --draft-max, and p-min --draft-p-min")
    if wanted.encoder_decoder:
        notes.append(ENCODER_DECODER.format(engine="llama-server"))
    command = shell(["llama-server"], ["--model", _gguf(wanted.target)], *flags(values))
    return Settings(command, values, notes=notes)


def _gguf(weights: Weights) -> str:
    """A name for the converted file."""
    return f"{PurePath(weights.place).name}.gguf"


ENGINE = ServingEngine(
    "llama.cpp",
    "llama.cpp",
    "master at 00dc8057a (tools/server/README.md)",
    "https://github.com/ggml-org/llama.cpp/blob/master/docs/speculative.md",
    settings,
)
