"""What became of each job, whichever process ran it.

Launchers run jobs in this process, in workers, or on other machines; Hydra hands nothing back to the command line. So a
sweep keeps a line a job in one file that all of them share, whose path travels in the environment, which every launcher
passes on. A single run needs no file.
"""

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

VARIABLE = "SPECBENCH_OUTCOMES"
_here: list[dict[str, Any]] = []


def begin(results: str, sweep: bool) -> None:
    """Forget what was; for a sweep, name a new file beside the records."""
    _here.clear()
    os.environ.pop(VARIABLE, None)
    if sweep:
        name = f"outcomes-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.jsonl"
        os.environ[VARIABLE] = str(Path(results).resolve() / "sweeps" / name)


def add(**outcome: Any) -> None:
    """One job's outcome: `code`, 0 where it went well, and `error`, what was told."""
    if not (name := os.environ.get(VARIABLE)):
        _here.append(outcome)
        return
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a", encoding="utf-8") as opened:  # one short write in append mode: lines do not mix
        opened.write(json.dumps(outcome, ensure_ascii=False) + "\n")


def end() -> list[dict[str, Any]]:
    """All outcomes since `begin`; the file has done its work."""
    name = os.environ.pop(VARIABLE, None)
    if name is None:
        return list(_here)
    with contextlib.suppress(OSError):
        text = Path(name).read_text(encoding="utf-8")
        Path(name).unlink()
        return [json.loads(line) for line in text.splitlines()]
    return []
