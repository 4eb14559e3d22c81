"""What a run is called: the same resolved config on the same content has the same id, and nothing else has."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from specbench.config import RunConfig
from specbench.config.paths import shipped
from specbench.models.load import name_of

# Where a record goes and whether it is made anew are not part of what is measured.
NOT_IDENTITY = ("results", "force")


def identify(config: RunConfig) -> str:
    """A readable id of a resolved config: names, T, gamma, and a digest of every key and of the files it names."""
    frozen = {key: value for key, value in asdict(config).items() if key not in NOT_IDENTITY}
    frozen["content"] = _content(config)
    digest = hashlib.sha256(json.dumps(frozen, sort_keys=True).encode()).hexdigest()[:8]
    names = f"{name_of(config.target)}-{draft_name(config)}-{config.task.name}"
    return f"{names}-T{config.sampling.temperature:g}-g{config.gamma}-{digest}"


def draft_name(config: RunConfig) -> str:
    """What tables call the draft."""
    return name_of(config.draft) if config.draft.kind == "model" else config.draft.kind


def _content(config: RunConfig) -> list[tuple[str, int, int]]:
    """Name, size and time of change of each local file: weights or rows that change make another run.

    Files that ship count by size alone: an installation sets its own times.
    """
    models = [config.target] + ([config.draft] if config.draft.kind == "model" else [])
    own = [path for model in models if (path := model.path)] + [p for p in (config.task.path,) if p]
    if config.draft.kind in ("unigram", "bigram") and config.task.train_path:
        own.append(config.task.train_path)
    seen = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for path in own for file in _files(Path(path))]
    ours = [shipped("models", model.shipped) for model in models if model.path is None and model.shipped]
    if config.task.path is None and config.task.shipped:
        ours.append(shipped("data", config.task.shipped))
    return seen + [(file.name, file.stat().st_size, 0) for path in ours for file in _files(path)]


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.is_file())
    return [path] if path.exists() else []
