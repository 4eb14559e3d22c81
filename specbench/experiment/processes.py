"""`runs=3`: the same run in several fresh processes, one after the other, as one record.

Addresses, the state of caches and clocks are drawn anew for each process and stay for its life, so no number of prompts
in one process averages over them. The processes run whole and in turn, not in blocks that alternate: then a machine
holds the models once, no process waits beside one that is timed, and a machine that becomes slower shows as a
difference between processes, which the interval covers. Within each process, the target alone and the draft alternate
from prompt to prompt.

Each process is an ordinary run with its own journal and record, in a folder of the results that exists until all are
done. Processes after the first take its gamma.
"""

import contextlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import IO

from specbench.analysis.several_processes import merged
from specbench.analysis.summary import resummarised
from specbench.config.schema import RunConfig
from specbench.environment import commit_of, time_stamp
from specbench.errors import MachineError, UserError, error_line
from specbench.experiment.dtype import faster_dtype
from specbench.experiment.identity import identify
from specbench.experiment.run_parts import resolve
from specbench.experiment.runner import Progress, execute, finished, reused, write_failure
from specbench.files import again, note_finished
from specbench.loading.model_loader import ModelLoader
from specbench.records import store
from specbench.records.journal import Journal, codes_of
from specbench.records.prediction import DraftingPlan
from specbench.records.run_record import Process, RunRecord
from specbench.records.store import Result

CHILD = "from specbench.experiment.processes import child; child()"
SECONDS_TO_END = 10


def execute_in_processes(config: RunConfig, progress: Progress, loader: ModelLoader | None = None) -> Result:
    """Run a checked `config` in `config.runs` processes and write one record, or return the existing record.

    A measurement that was interrupted resumes in the process, and after the prompt, at which it was.
    """
    asked, config = config, resolve(config, progress.note)
    run_id = identify(config)
    file = store.record_file(config.results, run_id)
    if loader is not None:
        loader.close()  # the processes need the device

    def waiting() -> None:
        progress.say("another process works on this run: waiting for its record")

    with Journal(config.results, run_id, waiting) as journal:  # only the lock: each process has its own journal
        if not config.force and finished(file, progress) is not None:
            return reused(file)
        folder = journal.file.with_suffix("")
        records: list[RunRecord] = []
        try:
            for number in range(config.runs):
                plan = records[0]["gamma"] if records else None
                records.append(_measured(of_process(config, number), plan, run_id, number, config.runs, progress))
            record = _one_record(records, config, run_id)
        except UserError:
            raise
        except Exception as error:
            write_failure(file, config, run_id, error)
            raise
        if asked.dtype == "auto" and config.device == "cpu" and (probed := faster_dtype(config)) is not None:
            record["summary"]["dtype_bfloat16_ms"] = probed.bfloat16_ms
            record["summary"]["dtype_float32_ms"] = probed.float32_ms
        store.write(config.results, record)
        shutil.rmtree(folder, ignore_errors=True)
    return Result(file, record, reused=False)


def of_process(config: RunConfig, number: int) -> RunConfig:
    """The run of process `number`, from 0, of a `config` that was resolved. Its record, if there is one, is used."""
    folder = Journal(config.results, identify(config)).file.with_suffix("")
    return replace(config, runs=1, force=False, results=str(folder / str(number + 1)))


def _one_record(records: Sequence[RunRecord], config: RunConfig, run_id: str) -> RunRecord:
    first = records[0]
    processes: list[Process] = [
        {**process, "run": run} for run, record in enumerate(records, 1) for process in record["processes"]
    ]
    return resummarised({
        **first,
        "run_id": run_id,
        "environment": {**first["environment"], "commit": commit_of(codes_of(processes))},
        "summary": {
            **first["summary"],
            "processes": len(processes),
            "created": time_stamp(),
        },
        "config": asdict(replace(config, force=False)),
        "processes": processes,
        "prompts": merged([record["prompts"] for record in records]),
    })  # fmt: skip


def _measured(
    config: RunConfig, plan: DraftingPlan | None, run_id: str, number: int, runs: int, progress: Progress
) -> RunRecord:
    """The record of one process, which is started unless it is there from before an interruption.

    Raises:
        UserError, MachineError: the process's own.
        MachineError: it ended without a record.
    """
    own_id, where = identify(config), f"process {number + 1} of {runs}"
    file = store.record_file(config.results, own_id)
    if (record := finished(file, progress)) is not None:
        note_finished()
        return record
    progress.say(f"{where}: starting")
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # Ctrl-C reaches only this process, which ends the other
    )
    assert process.stdin is not None and process.stdout is not None
    failure: dict[str, str] | None = None
    try:
        with contextlib.suppress(BrokenPipeError):  # it is gone: its exit code says why
            process.stdin.write(pickle.dumps((config, plan)))
            process.stdin.close()
        for line in process.stdout:
            message = json.loads(line)
            if (text := message.get("say")) is not None:
                progress.say(f"{where}: {text}")
            elif (text := message.get("note")) is not None and not number:  # the others note the same
                progress.note(text.replace(own_id, run_id))
            elif (done := message.get("done")) is not None:
                note_finished(done > 0 or number > 0)
                progress.advance(done, message["total"], where)  # each process decodes all prompts
            elif "error" in message:
                failure = message
        code = process.wait()
    finally:
        _end(process)
    if failure is not None:
        if failure["kind"] == "UserError":
            raise UserError(failure["error"])
        error = MachineError(f"{where}: {failure['error']}")
        error.add_note(failure["traceback"])
        raise error
    if code or (record := finished(file, progress)) is None:
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code} and no record"
        raise MachineError(f"{where}: {ended}{again()}")
    note_finished()
    return record


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process that still runs; its journal holds every finished prompt."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Channel:
    """The progress of a process, as JSON lines to the process that started it."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def say(self, text: str) -> None:
        self._send(say=text)

    def note(self, text: str) -> None:
        self._send(note=text)

    def advance(self, done: int, total: int, now: str = "") -> None:
        self._send(done=done, total=total)

    def fail(self, error: Exception) -> None:
        """The error that ended the process."""
        kind = "UserError" if isinstance(error, UserError) else "MachineError"
        trace = "".join(traceback.format_exception(error))
        self._send(error=error_line(error), kind=kind, traceback=trace)

    def _send(self, **message: str | int) -> None:
        self._stream.write(json.dumps(message) + "\n")
        self._stream.flush()


def child() -> None:
    """Execute the run that is pickled on stdin; progress and errors go to stdout."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints does not mix with the lines
    config, plan = pickle.load(sys.stdin.buffer)
    channel = Channel(stream)
    try:
        execute(config, channel, plan=plan)
    except BrokenPipeError:  # nobody waits for this process: its journal is kept
        sys.exit(1)
    except Exception as error:
        channel.fail(error)
        sys.exit(1)
