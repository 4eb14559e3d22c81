"""What tables call the parts of a run."""

from pathlib import Path


def task_label(name: str, path: str | None) -> str:
    """The task's name; with rows of the user's own, their file too: 'ende (rows.jsonl)' is not the paper's EnDe."""
    return name if path is None else f"{name} ({Path(path).name})"
