"""The outcome of each job of a sweep, whichever process ran it.

Launchers run jobs in this process, in workers, or on other machines, and Hydra returns nothing to the command line. So
the jobs of a sweep share one file, with one line per job, in the sweep's own folder beside the records. Its path
travels as an override, which every launcher passes on, and not in the environment, which an existing cluster would not
see. A single run needs no file.
"""

import contextlib
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NotRequired, TypedDict

from specbench import border
from specbench.border import Unreadable
from specbench.errors import MachineError
from specbench.nouns import with_noun

SECONDS_BETWEEN_LOOKS = 2.0
VARIABLE = "SPECBENCH_OUTCOMES"  # set by Hydra around each job of a sweep, from the override
_here = list["Outcome"]()
_expected: int | None = None  # jobs of the sweep that this process runs
_begun = False  # whether this process is the one that will ask for the outcomes


class Outcome(TypedDict):
    """The outcome of one job. `code` is 0 for success, with a record; otherwise there is an error."""

    code: int
    keys: list[str]
    run_id: NotRequired[str]
    record: NotRequired[str]
    reused: NotRequired[bool]
    error: NotRequired[str]
    traceback: NotRequired[str]


def begin() -> None:
    """This process starts a run or a sweep."""
    global _begun, _expected
    _here.clear()
    _begun, _expected = True, None


def expect(jobs: int) -> None:
    """The sweep that this process runs has so many jobs."""
    global _expected
    _expected = jobs


def place() -> str:
    """'3 of 12: ' for the third job of a sweep that ends in this process; '' in a worker, which does not know."""
    if _expected is None or not in_sweep():
        return ""
    return f"{len(all_of(Path(os.environ[VARIABLE]))) + 1} of {_expected}: "


@contextlib.contextmanager
def watching(file: Path, stream: IO[str]) -> Iterator[None]:
    """Print to `stream` how many jobs are done whenever one has ended, for launchers whose jobs print elsewhere."""
    ended, seen = threading.Event(), 0

    def look() -> None:
        nonlocal seen
        outcomes = all_of(file)
        if len(outcomes) > seen:
            seen = len(outcomes)
            of = "" if _expected is None else f" of {_expected}"
            failed = sum(outcome["code"] != 0 for outcome in outcomes)
            ended_jobs = f"{seen}{of} jobs" if of else with_noun(seen, "job")
            print(f"{ended_jobs} ended" + (f", {failed} of them failed" if failed else ""), file=stream, flush=True)

    def watch() -> None:
        while not ended.wait(SECONDS_BETWEEN_LOOKS):
            look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        look()


def new_file(results: str) -> Path:
    """A file for the outcomes of a new sweep, in a folder that no other sweep has.

    The name has chance in it: a process can begin two sweeps in one second, and machines that share a folder have equal
    process numbers.
    """
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
    return Path(results).resolve() / "sweeps" / name / "outcomes.jsonl"


def overrides(file: Path) -> list[str]:
    """Overrides for Hydra, so that each job notes its outcome in `file` and Hydra's own notes lie beside it."""
    return [f"+hydra.job.env_set.{VARIABLE}={_quoted(file)}", f"hydra.sweep.dir={_quoted(file.parent)}"]


def in_sweep() -> bool:
    """Whether this process is running a job of a sweep."""
    return VARIABLE in os.environ


def add(outcome: Outcome) -> None:
    """Note one job's outcome.

    Raises MachineError if the log cannot be written and no other process would report the job.
    """
    if not in_sweep():
        _here.append(outcome)
        return
    file = Path(os.environ[VARIABLE])
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "a", encoding="utf-8") as opened:  # one short write in append mode: lines do not mix
            opened.write(json.dumps(outcome, ensure_ascii=False) + "\n")
    except OSError as error:
        if not _begun:  # no other process would report this job
            raise MachineError(f"{file}: cannot be written ({error.strerror})") from error
        _here.append(outcome)


def all_of(file: Path | None) -> list[Outcome]:
    """All outcomes since `begin`: those in the sweep's `file`, and those that had to be kept here."""
    lines: list[str] = []
    with contextlib.suppress(Unreadable):
        lines = border.read_text(file).splitlines() if file is not None else []
    return [*_whole_outcomes(lines), *_here]


def _whole_outcomes(lines: list[str]) -> Iterator[Outcome]:
    """The outcomes in `lines`, without a line that a full disk cut off."""
    for line in lines:
        with contextlib.suppress(Unreadable):
            yield border.parse(line, Outcome)


def _quoted(path: Path) -> str:
    """`path` in Hydra's grammar, in which spaces, commas and brackets mean something."""
    return "'" + str(path).replace("'", "\\'") + "'"
