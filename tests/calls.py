"""The command line called in this process, and the record that it left."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specbench.cli import main
from specbench.records import store

Called = tuple[int, str, str, Any]


def newest(results: Path) -> Any:
    """The record in `results` that was written last, or None."""
    files = sorted(store.runs_folder(results).glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
    return store.read(files[-1]) if files else None


def called(argv: Sequence[str], results: Path, capfd: pytest.CaptureFixture[str]) -> Called:
    """(exit code, stdout, stderr, the newest record in `results` or None)."""
    code = main(list(argv))
    out, err = capfd.readouterr()
    return code, out, err, newest(results)
