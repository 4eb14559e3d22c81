"""Rows from the hub, streamed through `datasets` at a pinned revision."""

from collections.abc import Iterator

from specbench.config import TaskConfig
from specbench.errors import MachineError, first_line
from specbench.hub import hub_is_reachable


def hub_rows(task: TaskConfig, split: str) -> Iterator[dict[str, object]]:
    """The rows of one split. A row's `translation` (WMT's nesting) is laid flat."""
    import datasets  # seconds of import, and only needed with the hub

    if not hub_is_reachable():
        datasets.config.HF_HUB_OFFLINE = True  # what is cached is found without asking
    try:
        rows = datasets.load_dataset(task.hub, task.subset, split=split, revision=task.revision, streaming=True)
        for row in rows:
            nested = row.get("translation")
            yield nested if isinstance(nested, dict) else row
    except Exception as error:  # datasets and the hub client raise a dozen kinds
        reason = first_line(error) if hub_is_reachable() else "no connection"
        raise MachineError(
            f"task={task.name}: {task.hub} ({split}) cannot be read from the hub: {reason}; "
            "offline choices: task=ende-mini | sum-mini | lm-mini, or task.path=FILE.jsonl[.gz] with your own rows"
        ) from error
