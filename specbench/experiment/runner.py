"""Decode every prompt with and without the draft; finished prompts are never lost or repeated."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from specbench.analysis.costs.probe import already_collected
from specbench.analysis.looks import Looks
from specbench.analysis.summary import completed, resummarised
from specbench.border import Unreadable
from specbench.config.schema import RunConfig
from specbench.engine.batch import bytes_of_row
from specbench.engine.out_of_memory import is_out_of_memory
from specbench.engine.session import Model, Prompt
from specbench.environment import code, time_stamp
from specbench.errors import MachineError, UserError
from specbench.experiment.between_prompts import Decoded, decoded, give_completions, learn_from, put_answers
from specbench.experiment.drafting_plan import with_gamma
from specbench.experiment.dtype import faster_dtype
from specbench.experiment.identity import identify
from specbench.experiment.measure import measure_prompt, warm_up
from specbench.experiment.measure_batch import BatchParts, groups, measure_group, warm_up_rows
from specbench.experiment.record import failed_record, make_record
from specbench.experiment.run_parts import Parts, build_each, resolve
from specbench.loading.model_loader import ModelLoader
from specbench.loading.tensor_parallel import agree, join
from specbench.records import store
from specbench.records.journal import Journal
from specbench.records.prediction import DraftingPlan
from specbench.records.run_record import PromptRecord, RunRecord
from specbench.records.store import Result


@contextlib.contextmanager
def translated_errors(config: RunConfig) -> Iterator[None]:
    """A context that raises MachineError for known errors of the block."""
    try:
        yield
    except FloatingPointError as error:
        raise MachineError(
            f"dtype={config.dtype}: {error}; use dtype=float32, and check that the weights are not damaged"
        ) from error
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise MachineError(
            f"device={config.device}: out of memory; lower gamma, max_new_tokens or task.max_source_tokens, "
            "or use dtype=bfloat16"
        ) from error


class Progress(Protocol):
    """Receives the progress of a run."""

    def say(self, text: str) -> None:
        """The current step."""

    def note(self, text: str) -> None:
        """A line that must remain on the screen after the run."""

    def advance(self, done: int, total: int, now: str = "") -> None:
        """So many prompts are done; `now` is the estimate so far, in words."""


def execute(
    config: RunConfig, progress: Progress, loader: ModelLoader | None = None, plan: DraftingPlan | None = None
) -> Result:
    """Run a checked `config` and write its record, or return the existing record of the same config.

    A run that was interrupted resumes after the last prompt that it finished. If another process works on the same run,
    this one waits for it and returns its record. The first of several ranks executes, and the others `follow`. `loader`
    loads the models: a sweep's hands them from one job to the next. `plan` is what another process of the same
    measurement resolved gamma to.
    """
    loader = loader or ModelLoader()
    asked, config = config, resolve(config, loader.once(progress.note))
    join(config)
    run_id = identify(config)
    file = store.record_file(config.results, run_id)
    if agree(not config.force and finished(file, progress) is not None):
        return reused(file)

    def waiting() -> None:
        progress.say("another process works on this run: waiting for its record")

    # The device comes first: a process that waits for a run then waits for one that has all it needs.
    with (
        loader.device(config, progress.say) as device,
        Journal(config.results, run_id, waiting) as journal,
    ):
        # Again under the lock: another process may have finished the run since.
        if agree(not config.force and finished(file, progress) is not None):
            return reused(file)
        try:
            with translated_errors(config):
                placed = replace(config, device=str(device))
                (parts,) = build_each(
                    [placed], progress.say, progress.note, f"run {run_id}: ", loader, later_turns=config.batch == 1
                )
                known = journal.parts[-1]["gamma"] if journal.parts else plan
                before = known
                parts, choice = with_gamma(config, parts, before, progress.note)
                looks = Looks.of(config, len(parts.examples))
                if looks is not None:
                    progress.note(looks.plan(shuffled=config.task.shuffle is not None))
                _decode_missing(parts, journal, choice, progress, looks)
            if looks is not None:
                parts = replace(parts, examples=parts.examples[: looks.prompts], prompts=parts.prompts[: looks.prompts])
            prompts = [journal.prompts[example.index] for example in parts.examples]
            probed = faster_dtype(config) if asked.dtype == "auto" and config.device == "cpu" else None
            record = make_record(config, run_id, parts, prompts, journal.parts, probed, looks)
        except UserError:  # a slip to be typed again is no run
            raise
        except Exception as error:
            write_failure(file, config, run_id, error)
            raise
        store.write(config.results, record)
        journal.remove()
    return Result(file, record, reused=False)


def follow(config: RunConfig, progress: Progress, loader: ModelLoader | None = None) -> None:
    """Decode the same prompts as the first rank, for tensor parallelism, without writing files."""
    loader = loader or ModelLoader()
    config = resolve(config)
    join(config)
    if agree(False):
        return
    with loader.device(config, progress.say) as device:
        if agree(False):
            return
        placed = replace(config, device=str(device))
        (parts,) = build_each([placed], progress.say, loader=loader, later_turns=config.batch == 1)
        parts, _ = with_gamma(config, parts, None)
        missing, answers, texts = agree((list[int](), dict[int, str](), list[Decoded]()))
        if missing:
            _restore(parts, texts, answers)
            _decode_in_turn(parts, missing, answers, lambda prompt: False)


def reused(file: Path) -> Result:
    """The result of a run whose record is in `file`."""
    record = store.read(file)
    return Result(file, completed(record if "prediction" in record["summary"] else resummarised(record)), reused=True)


def finished(file: Path, progress: Progress) -> RunRecord | None:
    """The record in `file`; None if it is missing, damaged, or the record of a failed run."""
    if not file.exists():
        return None
    try:
        return None if store.read_head(file).failed else store.read(file)
    except Unreadable as error:
        progress.say(f"{file} is damaged ({error}); running again")
        return None


def write_failure(file: Path, config: RunConfig, run_id: str, error: Exception) -> None:
    """Write the record of a failed run, unless a successful record exists."""
    with contextlib.suppress(Unreadable):
        if file.exists() and not store.read_head(file).failed:
            return
    with contextlib.suppress(MachineError):  # the first error is the one to tell
        store.write(config.results, failed_record(config, run_id, error))


def _decode_missing(
    parts: Parts, journal: Journal, choice: DraftingPlan, progress: Progress, looks: Looks | None
) -> None:
    total = len(parts.examples)

    def ended() -> bool:
        """Whether the run ends at the prompts that are done."""
        done = [journal.prompts[one.index] for one in parts.examples if one.index in journal.prompts]
        return looks is not None and looks.see(done)

    def advance() -> bool:
        """Take the looks that are due, and tell the progress; whether the run ends here."""
        ends = ended()
        progress.advance(len(journal.prompts), total, "" if looks is None else looks.now)
        return ends

    if parts.config.draft.learns and 0 < (lost := len(journal.prompts)) < total:
        journal.restart()
        progress.note(
            f"draft.online=true: the weights learnt from the {lost} prompts before the interruption are lost, so the "
            "run starts again from the first prompt"
        )
    done = [place for place, example in enumerate(parts.examples) if example.index in journal.prompts]
    answers = {index: prompt["baseline"].text for index, prompt in journal.prompts.items()}
    texts = decoded(done, [journal.prompts[parts.examples[place].index] for place in done])
    missing, _, _ = agree((sorted({*range(total)} - {*done}), answers, texts))
    _restore(parts, texts, answers)
    if ended() or not missing:
        return
    if journal.prompts:
        progress.note(f"resuming after {len(journal.prompts)} finished prompts")
        if before := journal.other_code(code()):
            progress.note(f"they are of other code ({', '.join(before)}; now {code()}); force=true begins again")
    journal.begin_part(time_stamp(), choice, code())
    progress.say("warming up")
    if parts.config.batch > 1:
        require_memory(parts)
        rows = BatchParts.of(parts, parts.config.batch)
        warm_up_rows(parts, rows)
        parts = parts.sharing()
        with already_collected():
            for group in groups(missing, parts.config.batch):
                found = measure_group(parts, rows, group)
                for prompt in found:
                    journal.add(prompt)
                give_completions(parts, decoded(group, found))
                if advance():
                    return
        return

    def add(prompt: PromptRecord) -> bool:
        journal.add(prompt)
        return advance()

    _decode_in_turn(parts, missing, answers, add)


def _restore(parts: Parts, texts: Sequence[Decoded], answers: Mapping[int, str]) -> None:
    """Restore the state of an interrupted run: answers in later turns, completions in a growing draft's store."""
    for place, _ in texts:
        put_answers(parts, place, answers)
    give_completions(parts, texts)


def _decode_in_turn(
    parts: Parts,
    places: Sequence[int],
    answers: dict[int, str],
    add: Callable[[PromptRecord], bool],
) -> None:
    """Decode the prompts at `places` one by one and pass each to `add`, until that says that the run ends.

    `answers` receives the target's answers.
    """
    warm_up(parts)
    parts = parts.sharing()
    with already_collected():
        for place in places:
            put_answers(parts, place, answers)
            prompt = measure_prompt(parts, place)
            answers[prompt["index"]] = prompt["baseline"].text
            give_completions(parts, decoded([place], [prompt]))
            learn_from(parts, place, prompt)
            if add(prompt):
                return


MEMINFO = Path("/proc/meminfo")
SPARE = 0.9  # of what is free: weights are loaded, but kernels need room of their own


def require_memory(parts: Parts) -> None:
    """Check that the rows of `batch` fit into the free memory.

    Raises UserError if they do not; the message names the largest batch that does.
    """
    free = free_bytes(parts.device)
    if free is None:
        return
    config = parts.config
    row = row_bytes([parts.target, *parts.draft.models], parts.prompts, config.max_new_tokens)
    most = int(SPARE * free / row)
    if config.batch > most:
        raise UserError(
            f"batch={config.batch}: needs {config.batch * row / 1e9:.1f} GB for its caches and logits, and "
            f"{free / 1e9:.1f} GB are free; the largest that fits is batch={max(1, most)}"
        )


def row_bytes(models: Sequence[Model], prompts: Sequence[Prompt], max_new_tokens: int) -> float:
    """Maximum memory of a row in these models, with the longest of `prompts` in it."""
    source = max(len(prompt.source) for prompt in prompts)
    tokens = max(len(prompt.prefix) for prompt in prompts) + max_new_tokens
    return sum(bytes_of_row(model, tokens, source) for model in models)


def free_bytes(device: torch.device) -> float | None:
    """The free bytes of `device`; None if the system does not tell."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu" or not MEMINFO.is_file():
        return None
    lines = dict(line.split(":", 1) for line in MEMINFO.read_text(encoding="ascii").splitlines())
    return 1024.0 * int(lines["MemAvailable"].split()[0]) if "MemAvailable" in lines else None
