"""The id of a run: equal if and only if the resolved config and the files that the run reads are equal."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specbench.config.draft import TextDraftConfig
from specbench.config.model import ModelConfig, name_of
from specbench.config.paths import shipped
from specbench.config.rules import rule_of
from specbench.config.schema import OLD, RunConfig
from specbench.escaping import file_name
from specbench.files import json_digest
from specbench.loading.model_loader import files_in, files_of
from specbench.methods.model.config import ONLINE, ModelDraftConfig

# The folder of a record and `force` are not part of the measurement.
NOT_IDENTITY = ("results", "force")

# What the digests of these kinds of draft are made with: kept records are found by their ids, and what a kind measures
# may have changed (a quantised draft read the prompt itself before it copied the target's keys and values).
HELD: dict[str, dict[str, object]] = {
    "early-exit": {"reuse": False},
    "layer-skip": {"reuse": False},
    "quantised": {"prompt": "copied"},
}


def identify(config: RunConfig) -> str:
    """A readable id of a resolved config: names, T, gamma, and a digest of every key and of the files it names."""
    frozen = {key: value for key, value in asdict(config).items() if key not in NOT_IDENTITY}
    if config.tree.shape == "none":  # as a run was called before there were trees
        del frozen["tree"]
    if config.batch == 1:  # or batches
        del frozen["batch"]
    for key, value in (("runs", 1), ("until", None), ("context", None), ("reuse", True)):  # or these keys
        if frozen[key] == value:
            del frozen[key]
    if config.numerics == "auto":  # and before this could be chosen
        del frozen["numerics"]
    set_keys = config.sampling.set_keys()  # or logits were processed
    frozen["sampling"] = {key: value for key, value in frozen["sampling"].items() if key in {*OLD, *set_keys}}
    for key in ("template", "category_field", "shuffle"):  # as a run was called before tasks had these
        if frozen["task"][key] is None:
            del frozen["task"][key]
    if not frozen["task"]["each_turn"]:
        del frozen["task"]["each_turn"]
    for model in (*_dictionaries(frozen["target"]), *_dictionaries(frozen["draft"])):  # or models these
        for key in ("gguf", "base"):
            if model.get(key, 0) is None:
                del model[key]
    for draft in list(_dictionaries(frozen["draft"])):  # as runs were called before drafts had, or lost, these keys
        if draft.get("top_tokens", 0) is None:
            del draft["top_tokens"]
        if draft.get("kind") == ModelDraftConfig.kind and draft["window"] is None:
            del draft["window"], draft["sinks"]
        if not config.draft.learns:
            for key in [key for key in draft if key.startswith(ONLINE)]:
                del draft[key]
        draft.update(HELD.get(draft.get("kind", ""), {}))
    frozen["content"] = content_of(config)
    batch = "" if config.batch == 1 else f"-b{config.batch}"
    batch += "" if config.context is None else f"-c{config.context}"
    names = f"{name_of(config.target)}-{config.draft.label()}-{config.task.name}"
    setting = f"T{config.sampling.temperature:g}-g{_gamma(config)}{rule_of(config.accept).slug()}{batch}"
    return file_name(names, f"-{setting}-{json_digest(frozen)}")


def _dictionaries(draft: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The keys of a draft, and the keys of each of its parts."""
    yield draft
    for value in draft.values():
        if isinstance(value, dict):
            yield from _dictionaries(value)


def _gamma(config: RunConfig) -> str:
    return str(config.gamma) if config.tree.shape == "none" else f"{config.tree.shape}{config.tree.size or ''}"


def content_of(config: RunConfig) -> list[tuple[str, int, int | str]]:
    """Name, size and modification time of each local file: changed weights or rows make a different run.

    Files that ship count by their content: an installation sets its own times, and they are small.
    """
    models: list[ModelConfig] = [config.target]
    own = [config.task.path]
    for draft in config.draft.levels():
        if isinstance(draft, ModelConfig):
            models.append(draft)
        if isinstance(draft, ModelDraftConfig) and draft.top_tokens is not None:
            own.append(config.task.train_path)
        if isinstance(draft, TextDraftConfig):
            own.append(draft.corpus or config.task.train_path)
    seen = [entry for model in models for entry in files_of(model)]
    seen += [facts for path in own if path for facts in files_in(Path(path))]
    if config.task.path is None and config.task.shipped:
        seen += files_in(shipped("data", config.task.shipped), ships=True)
    return seen
