"""What became of each job of a sweep, whichever process ran it: a line a job in one file that all of them share.

Launchers run jobs in this process, in workers, or on other machines; Hydra hands nothing back to the command line. The
file's path travels in the environment, which every launcher passes on.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

VARIABLE = "SPECBENCH_OUTCOMES"


def begin(results: str) -> Path:
    """A new file of outcomes beside the records."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    file = Path(results).resolve() / "sweeps" / f"{stamp}-{os.getpid()}.jsonl"
    os.environ[VARIABLE] = str(file)
    return file


def add(**outcome: Any) -> None:
    """One job's outcome: `code`, 0 where it went well, and `error`, what was told."""
    if not (name := os.environ.get(VARIABLE)):
        return
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a", encoding="utf-8") as opened:  # one short write in append mode: lines do not mix
        opened.write(json.dumps(outcome, ensure_ascii=False) + "\n")


def read(file: Path) -> list[dict[str, Any]]:
    """The outcomes so far."""
    os.environ.pop(VARIABLE, None)
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
