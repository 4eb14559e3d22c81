"""The commit of every repository that a run names, so that its record can be repeated."""

from dataclasses import replace
from typing import Any, TypeVar

from specbench.config import DraftConfig, ModelConfig, RunConfig, TaskConfig
from specbench.hub import COMMIT, Kind, commit_of
from specbench.runs.model_loader import Say

M = TypeVar("M", bound=ModelConfig)


def pinned(config: RunConfig, note: Say | None = None) -> RunConfig:
    """The config with a commit for each missing revision, branch or tag; `note` receives the words that pin it.

    Raises:
        UserError: the hub has no such repository or revision.
        MachineError: it cannot be asked.
    """
    note = note or (lambda _: None)
    return replace(
        config,
        target=_model(config.target, "target", note),
        draft=_draft(config.draft, "draft", note),
        task=_task(config.task, note),
    )


def _draft(draft: DraftConfig, key: str, note: Say) -> DraftConfig:
    parts: dict[str, Any] = {
        name: _draft(part, f"{key}.{name}", note) for name, part in draft.parts().items() if part is not None
    }
    if parts:
        return replace(draft, **parts)
    return _model(draft, key, note) if isinstance(draft, ModelConfig) else draft


def _model(model: M, key: str, note: Say) -> M:
    if model.path is not None or model.hub is None or model.architecture:
        return model
    in_a_word = model.name is None and "." not in key
    return replace(model, revision=_commit(model.hub, model.revision, key, "model", in_a_word, note))


def _task(task: TaskConfig, note: Say) -> TaskConfig:
    if task.path is not None or task.hub is None:
        return task
    return replace(task, revision=_commit(task.hub, task.revision, "task", "dataset", False, note))


def _commit(hub: str, revision: str | None, key: str, kind: Kind, in_a_word: bool, note: Say) -> str:
    if revision is not None and COMMIT.fullmatch(revision):
        return revision
    commit = commit_of(hub, revision, key, kind)
    word = f"{key}={hub}@{commit}" if in_a_word else f"{key}.revision={commit}"
    note(f"{hub} is at commit {commit[:12]}; to pin it: {word}")
    return commit
