"""The id of a run: equal if and only if the resolved config and the files that the run reads are equal."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from specbench.config.draft import REMOVED_DEFAULTS, TextDraftConfig
from specbench.config.model import ModelConfig, name_of
from specbench.config.paths import shipped
from specbench.config.rules import rule_of
from specbench.config.schema import RunConfig
from specbench.escaping import file_name
from specbench.files import json_digest
from specbench.loading.model_loader import files_in, files_of
from specbench.methods.model.config import ONLINE, ModelDraftConfig

# The folder of a record and `force` are not part of the measurement.
NOT_IDENTITY = ("results", "force")


def identify(config: RunConfig) -> str:
    """A readable id of a resolved config: names, T, gamma, and a digest of every key and of the files it names."""
    frozen = {key: value for key, value in asdict(config).items() if key not in NOT_IDENTITY}
    if config.tree.shape == "none":  # as a run was called before there were trees
        del frozen["tree"]
    if config.batch == 1:  # or batches
        del frozen["batch"]
    if config.numerics == "auto":  # and before this could be chosen
        del frozen["numerics"]
    for key in ("template", "category_field", "shuffle"):  # as a run was called before tasks had these
        if frozen["task"][key] is None:
            del frozen["task"][key]
    _without_unset(frozen["draft"])
    if not config.draft.learns:
        _without_online(frozen["draft"])
    _with_removed_keys(frozen["draft"])
    frozen["content"] = _content(config)
    batch = "" if config.batch == 1 else f"-b{config.batch}"
    names = f"{name_of(config.target)}-{config.draft.label()}-{config.task.name}"
    setting = f"T{config.sampling.temperature:g}-g{_gamma(config)}{rule_of(config.accept).slug()}{batch}"
    return file_name(names, f"-{setting}-{json_digest(frozen)}")


def _without_online(draft: dict[str, Any]) -> None:
    """Remove the keys of online learning from `draft` and its parts, so that older runs keep their ids."""
    for key, value in list(draft.items()):
        if key.startswith(ONLINE):
            del draft[key]
        elif isinstance(value, dict):
            _without_online(value)


def _with_removed_keys(draft: dict[str, Any]) -> None:
    """Add to `draft` and its parts the keys that their kinds once had, so that older runs keep their ids."""
    draft.update(REMOVED_DEFAULTS.get(draft.get("kind", ""), {}))  # other keys hold dictionaries, too
    for value in draft.values():
        if isinstance(value, dict):
            _with_removed_keys(value)


def _without_unset(draft: dict[str, Any]) -> None:
    """Remove keys that drafts did not have once, where they are unset."""
    if draft.get("top_tokens", 0) is None:
        del draft["top_tokens"]
    for value in draft.values():
        if isinstance(value, dict):
            _without_unset(value)


def _gamma(config: RunConfig) -> str:
    return str(config.gamma) if config.tree.shape == "none" else f"{config.tree.shape}{config.tree.size or ''}"


def _content(config: RunConfig) -> list[tuple[str, int, int | str]]:
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
