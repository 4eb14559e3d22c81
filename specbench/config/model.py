"""The keys of a model: the source of its weights, and its name."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench import border
from specbench.config.keys import Allowed, fresh, key, one_of, require
from specbench.config.paths import shipped
from specbench.config.recipes import made_by
from specbench.errors import UserError

REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")  # OWNER/NAME, OWNER/NAME@REVISION


@dataclass
class NamedConfig:
    """A config that can be picked by name: a model, or a draft of any kind."""

    name: str | None = key(None, "the name in tables; unset: the name of the folder or repository")
    note: str | None = key(None, "what this checkpoint is, and which of the paper's it replaces")


@dataclass
class ModelConfig(NamedConfig):
    """Where a model comes from. The first of `path`, `hub`, `shipped` that is set is used."""

    path: str | None = key(None, "a local folder of weights and tokenizer, or of a LoRA adapter; or a GGUF file")
    hub: str | None = key(None, "a repository on the model hub, OWNER/NAME")
    revision: str | None = key(
        None, "its commit, branch or tag; unset: the newest commit, which the run prints and records"
    )
    gguf: str | None = key(None, "the GGUF file in that folder or repository; or OWNER/NAME:FILE.gguf, ./FILE.gguf")
    base: str | None = key(None, "the base of a LoRA adapter, ./FOLDER or OWNER/NAME; unset: as the adapter says")
    shipped: str | None = key(None, "a model that ships with this project")
    device_map: str | None = key(
        None,
        "auto | balanced | sequential: spread the layers over all GPUs (accelerate); targets only",
        one_of(("auto", "balanced", "sequential")),
    )
    tp_plan: str | None = key(
        None,
        "auto: split every layer over all GPUs (tensor parallel), under torchrun; targets only",
        Allowed("auto".__eq__, "auto, or null"),
    )
    weights: str = key(
        "trained",
        "trained | random: the true shape, for times without a checkpoint; see simulate.alpha",
        one_of(("trained", "random")),
    )
    architecture: dict[str, Any] = fresh(dict, "the shape of random weights that have no config.json")


def place_of(model: ModelConfig) -> str | None:
    """The folder, hub name or shipped weights of `model`, as `distill.target` takes it; None if it has none."""
    if model.path:
        return model.path if "/" in model.path else f"./{model.path}"  # a single word is a name
    return model.hub or (f"shipped:models/{model.shipped}" if model.shipped else None)


def weights_folder(model: ModelConfig) -> str | None:
    """The folder of the weights of `model`, or its name on the hub; None if it has none."""
    shipped_as = None if model.shipped is None else str(shipped("models", model.shipped))
    return model.path or model.hub or shipped_as


def name_of(model: ModelConfig) -> str:
    """The model's name in tables: its key `name`, or the name of its folder or repository."""
    if model.name is None and model.path is not None:
        return Path(model.path).resolve().name
    if model.name is None and model.gguf is not None:
        return Path(model.gguf).name
    return model.name or (model.hub or "").rpartition("/")[2]


GGUF = ".gguf"
ADAPTER = "adapter_config.json"  # of peft
QUANTISED = "quantization_config"  # of a config.json whose weights are GPTQ, AWQ, bitsandbytes, FP8, …
# Trained drafts by a key of their config.json as we save them, and by a part of the architecture's name.
SAVED_DRAFTS = {"eagle": "eagle (or eagle3)", "mtp": "mtp", "peagle": "peagle"}
PUBLISHED_DRAFTS = {"DFlash": "dflash", "DSpark": "dspark", "Eagle3": "eagle3", "Eagle": "eagle", "Medusa": "medusa"}


def not_a_model(path: Path, kind: str = "model") -> str | None:
    """A description of a file or folder without loadable weights, and the way out; None if it may hold some.

    `kind`: of the draft that is looked for; a kind that is trained finds its own weights there.
    """
    file = path / "config.json"
    if path.is_file():
        return None if path.suffix == GGUF else "is a file; give the folder of config.json and the weights"
    if not file.is_file() and (files := sorted(path.glob(f"*{GGUF}"))):
        return f"holds GGUF files; give one of them: {files[0]}"
    adapter = _content(path / ADAPTER)
    if adapter is not None and not file.is_file():
        return _not_lora(adapter)
    content = _content(file) or {}
    if kind == "model" and (saved := _trained_draft(content)) is not None:
        return f"holds a trained draft, not a model: draft={saved} draft.path={path}"
    return None


def _not_lora(adapter: Mapping[str, Any]) -> str | None:
    """Why an adapter with this config cannot be merged; None if it can."""
    kind = str(adapter.get("peft_type") or "unknown").upper()
    if kind == "LORA":
        return None
    return (
        f"is an adapter of the kind {kind}, and only LoRA adapters are merged; merge it with peft (merge_and_unload(), "
        "then save_pretrained(FOLDER) of model and tokenizer) and give that folder"
    )


def adapter_in(folder: Path) -> Mapping[str, Any] | None:
    """The config of the LoRA adapter in `folder`; None if it holds none, or a whole model."""
    return None if (folder / "config.json").is_file() else _content(folder / ADAPTER)


def is_gguf(model: ModelConfig) -> bool:
    """Whether the weights of `model` are in a GGUF file."""
    if model.gguf is None and model.path is not None and model.base is None:
        return Path(model.path).suffix == GGUF
    return model.gguf is not None


def _trained_draft(content: Mapping[str, Any]) -> str | None:
    """The kind of the trained draft whose config.json holds `content`; None for a model's."""
    if "model_type" not in content:
        saved = (kind for name, kind in SAVED_DRAFTS.items() if name in content)
        return next(saved, str(content["kind"]) if "kind" in content else None)
    names = [str(name) for name in content.get("architectures") or ()]
    return next((kind for part, kind in PUBLISHED_DRAFTS.items() if any(part in name for name in names)), None)


def _content(file: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None without a file, or if it holds no object."""
    try:
        content = border.parse(border.read_bytes(file), finite=False)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def check_model(key: str, model: ModelConfig) -> None:
    """Check the keys of a model; `key` is the config's name of it.

    Raises UserError for the first value out of range, or a model that does not exist.
    """
    if key.startswith("draft") and (model.device_map or model.tp_plan):
        raise UserError(f"{key}.device_map, {key}.tp_plan: a draft lives on one device; leave them null")
    if model.device_map and model.tp_plan:
        raise UserError(f"{key}.device_map={model.device_map}: not together with {key}.tp_plan; leave one of them null")
    if model.architecture:
        require(model.weights == "random", f"{key}.weights", model.weights, f"random where {key}.architecture is given")
    elif model.path is not None:
        kind = getattr(model, "kind", "model")  # a target has none
        is_named = model.gguf is not None  # then the folder may hold only GGUF files
        if not is_named and Path(model.path).exists() and (said := not_a_model(Path(model.path), kind)) is not None:
            raise UserError(f"{key}.path={model.path}: {said}")
        there = Path(model.path).is_dir() or is_gguf(model)
        if model.gguf is not None and there and not (Path(model.path) / model.gguf).is_file():
            raise UserError(f"{key}.gguf={model.gguf}: there is no such file in {model.path}")
        if Path(model.path).suffix == GGUF:
            require(Path(model.path).is_file(), f"{key}.path", model.path, "a file; there is none of that name")
        if not there and (how := made_by(model.path)):
            raise UserError(f"{key}.path={model.path}: does not exist yet; {how}")
        word = REPOSITORY.fullmatch(model.path)
        of_hub = (
            f"; of the hub: {key}.hub={word[1]}" + (f" {key}.revision={word[2]}" if word[2] else "") if word else ""
        )
        require(there, f"{key}.path", model.path, f"a folder; there is none of that name{of_hub}")
    elif model.hub is None and model.shipped is None:
        raise UserError(f"{key}: names no model; give {key}=OWNER/NAME (of the hub) or {key}=./FOLDER")


def own_weights(config: Mapping[str, Any]) -> str:
    """The models ('target', 'draft') of a frozen config whose folder replaces the model that their name stands for.

    `target=t5-xxl target.path=FOLDER` is called t5-xxl, and may be any model. A choice that is a folder by itself, such
    as `gpt-97m`, is not among them.
    """
    parts = {part: config.get(part) or {} for part in ("target", "draft")}
    named = [
        part
        for part, model in parts.items()
        if model.get("path") is not None and (model.get("hub") is not None or model.get("shipped") is not None)
    ]
    return " ".join(named)
