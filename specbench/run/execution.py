"""Decode every prompt both ways, side by side; nothing that was finished is lost or done twice."""

import contextlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import torch

from specbench import store
from specbench.config import RunConfig
from specbench.errors import MachineError, UserError
from specbench.journal import Journal
from specbench.run.build import Parts, build, resolve
from specbench.run.claim import claimed
from specbench.run.identity import identify
from specbench.run.pair import measure, warm_up
from specbench.run.record import failed_record, make_record


class Progress(Protocol):
    """Who is told how a run goes."""

    def say(self, text: str) -> None: ...

    def advance(self, done: int, total: int) -> None: ...


@dataclass(frozen=True)
class Result:
    """Where the record is, what it says, and whether it was there already."""

    file: Path
    record: dict[str, Any]
    reused: bool


def execute(config: RunConfig, progress: Progress) -> Result:
    """Run `config`, which was checked, and write its record; or hand back the record of the very same config.

    A run that was interrupted goes on behind the last prompt it finished.
    """
    config = resolve(config)
    run_id = identify(config)
    file = store.record_file(config.results, run_id)
    if not config.force and (record := _finished(file, progress)) is not None:
        return Result(file, record, reused=True)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    with Journal(config.results, run_id) as journal, claimed(config.device, progress.say) as device:
        try:
            parts = build(replace(config, device=str(device)), progress.say)
            _decode_missing(config, parts, journal, progress)
            prompts = [journal.prompts[example.index] for example in parts.examples]
            record = make_record(config, run_id, parts, prompts, journal.parts)
        except (UserError, MachineError) as error:
            with contextlib.suppress(MachineError):  # the first error is the one to tell
                store.write(config.results, failed_record(config, run_id, error))
            raise
        store.write(config.results, record)
        journal.remove()
    return Result(file, record, reused=False)


def _finished(file: Path, progress: Progress) -> dict[str, Any] | None:
    """The record in `file`, unless there is none, or it is damaged, or it only says why the run failed."""
    if not file.exists():
        return None
    try:
        record = store.read(file)
    except ValueError:
        progress.say(f"{file} is damaged; running again")
        return None
    return None if store.FAILED in record["summary"] else record


def _decode_missing(config: RunConfig, parts: Parts, journal: Journal, progress: Progress) -> None:
    total = len(parts.examples)
    missing = [place for place, example in enumerate(parts.examples) if example.index not in journal.prompts]
    if not missing:
        return
    if journal.prompts:
        progress.say(f"going on behind {len(journal.prompts)} prompts that were finished before")
    journal.begin_part({"started": datetime.now(UTC).isoformat(timespec="seconds")})
    try:
        progress.say("warming up")
        warm_up(config, parts)
        for place in missing:
            journal.add(measure(config, parts, place))
            progress.advance(len(journal.prompts), total)
    except FloatingPointError as error:
        raise MachineError(
            f"dtype={config.dtype}: {error}; use dtype=float32, and check that the weights are not damaged"
        ) from error
    except torch.OutOfMemoryError as error:
        raise MachineError(
            f"device={config.device}: out of memory; lower gamma, max_new_tokens or task.max_source_tokens, "
            "or use dtype=bfloat16"
        ) from error
