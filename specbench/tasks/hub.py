"""Rows from the hub, streamed through `datasets` at a pinned revision."""

from collections.abc import Iterator

from specbench.config import TaskConfig
from specbench.errors import MachineError, first_line
from specbench.hub import hub_failure, hub_is_reachable, silence

STREAM_RETRIES = (
    3  # of a stream that breaks, each of which is five of the hub's client; the library's own 20 take minutes
)


def hub_rows(task: TaskConfig, split: str) -> Iterator[dict[str, object]]:
    """The rows of one split; a row's `translation` (WMT's nesting) is flattened.

    Raises:
        UserError: the hub has no such data set or revision.
        MachineError: the hub cannot be read.
    """
    import datasets  # seconds of import, and only needed with the hub

    silence()
    datasets.logging.set_verbosity_error()
    datasets.config.STREAMING_READ_MAX_RETRIES = STREAM_RETRIES
    if not hub_is_reachable():
        datasets.config.HF_HUB_OFFLINE = True  # what is cached is found without asking
    try:
        rows = datasets.load_dataset(task.hub, task.subset, split=split, revision=task.revision, streaming=True)
        for row in rows:
            nested = row.get("translation")
            yield nested if isinstance(nested, dict) else row
    except Exception as error:  # datasets and the hub client raise a dozen kinds
        if hub_is_reachable() and (known := hub_failure(error, f"task={task.name}", task.hub or "", task.revision)):
            raise known from error
        reason = first_line(error) if hub_is_reachable() else "no connection"
        raise MachineError(
            f"task={task.name}: {task.hub} ({split}) cannot be read from the hub: {reason}; "
            "offline choices: task=ende-mini | sum-mini | lm-mini, or task.path=FILE.jsonl[.gz] with your own rows"
        ) from error
