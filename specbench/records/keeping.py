"""Small copies of records, committed together with the tables and figures drawn from them.

A copy is the record with times to the microsecond and a summary made from these times, without what says nothing
about the run, compressed. A record that names a folder of this machine is not copied, since nobody else could
repeat it; of a relative path the copy has the name alone.
"""

import gzip
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specbench.border import Unreadable
from specbench.environment import CHANGES
from specbench.files import with_floats, write_atomically
from specbench.recorded import from_json
from specbench.records import store
from specbench.records.alpha_document import KeptAlphaDocument
from specbench.records.catalog import kept_folder
from specbench.records.documents import read_document, write_document
from specbench.records.frame import Records
from specbench.records.schema import Config, PromptRecord, RunRecord

LOCAL = "local"  # in the results folder: what is drawn from records that were not kept
DIRTY = "it comes from code with uncommitted changes; commit them and run it again, or give --dirty"
PLACES = ("path", "train_path", "corpus", "cache_dir")  # keys of a config that name files and folders
LEFT_OUT = ("platform",)  # of the environment: the kernel's build says more of the host than of the run


def keep(
    records: Records,
    say: Callable[[str], None],
    resummarised: Callable[[RunRecord], RunRecord] | None = None,
    dirty: bool = False,
) -> list[Path]:
    """Copy every record of `records`; returns the copies.

    A copy is removed if a newer record of the same config on the same machine replaces it.

    Args:
        records: all of a folder.
        say: gets a line for each record that is not copied, and for each copy that is removed.
        resummarised: makes the summary of a record anew from its raw prompts, so that a copy agrees with its rounded
            times (`analysis.summary.resummarised`); None: summaries remain as the run made them.
        dirty: copy records of code with uncommitted changes too, which nobody else can have. A copy that is there
            already stays.
    """
    folder = kept_folder(records.results)
    files = []
    for run_id in records.disturbed:
        say(f"{run_id}: not kept, the machine was shared or held back while it was timed")
    for run_id in sorted(records.all_runs["run_id"]):
        record = records.whole(run_id)
        if local := _local_paths(record["config"]):
            say(f"{run_id}: not kept, it names {local[0]} of this machine")
            continue
        file = folder / f"{store.require_file_name(run_id)}.json.gz"
        is_copy = records.catalog.head(run_id).file == file
        if not is_copy and not dirty and is_dirty(record["environment"]):
            say(f"{run_id}: not kept, {DIRTY}")
            continue
        files.append(file)
        if not is_copy:
            whole = rounded(record)
            write_atomically(file, compact(resummarised(whole) if resummarised else whole))
        for old in records.replaced(run_id):
            if (copy := folder / f"{old}.json.gz").is_file():
                say(f"{old}: copy removed, {run_id} is newer and of the same config")
                copy.unlink()
    return files + _keep_alphas(records.results, folder / "alpha", say, dirty)


def drawing_folder(records: Records, folder: Path, say: Callable[[str], None]) -> Path:
    """`folder`, or `local/` if drawing these records there would replace a drawing of the kept records.

    The folders beside `kept/` are committed with it. A record without a copy in there is drawn into `local/` instead.
    """
    committed = kept_folder(records.results).is_dir() and folder.resolve().parent == records.results.resolve()
    used = {*records.all_runs["run_id"], *records.disturbed}  # a drawing names disturbed records under it
    new = [run_id for run_id in records.catalog.unkept if run_id in used]
    if not committed or not new:
        return folder
    elsewhere = records.results / LOCAL / folder.name
    some = ", ".join(new[:3]) + (" ..." if len(new) > 3 else "")
    say(
        f"{len(new)} records are not in {kept_folder(records.results)} ({some}), so {folder} is left as it is and "
        f"{elsewhere} is written; 'specbench report --keep' copies them, and then {folder} is drawn again"
    )
    return elsewhere


def is_dirty(environment: Mapping[str, object]) -> bool:
    """Whether a record was made by code that differed from its commit."""
    return str(environment.get("commit") or "").endswith(CHANGES)


def _keep_alphas(results: Path, folder: Path, say: Callable[[str], None], dirty: bool) -> list[Path]:
    """The tables of `specbench alpha`, without the scores of every token."""
    files = []
    for file in sorted((results / "alpha").glob("*.json")):
        try:
            record = read_document(file, KeptAlphaDocument)
        except Unreadable as error:
            say(f"{file}: not kept, it is not a record of specbench alpha ({error})")
            continue
        if local := [path for config in record.get("configs", ()) for path in _local_paths(config)]:
            say(f"{record['alpha_id']}: not kept, it names {local[0]} of this machine")
            continue
        if not dirty and is_dirty(record.get("environment", {})) and not (folder / file.name).is_file():
            say(f"{record['alpha_id']}: not kept, {DIRTY}")
            continue
        copy = {key: record[key] for key in ("alpha_id", "rows")}
        files.append(write_document(folder / file.name, copy, indent=1))
    return files


def rounded(record: RunRecord) -> RunRecord:
    """A record whose raw prompts have times to the microsecond."""
    return {**record, "prompts": from_json(list[PromptRecord], with_floats(record["prompts"], _shortened))}


def compact(record: RunRecord) -> bytes:
    """The copy's bytes, the same for the same record. Its first line is the head, as in `runs/`."""
    copy = {**record, "config": {**_with_names(record["config"]), "results": "results"}}
    body = {key: with_floats(value, _shortened) for key, value in record.items() if key not in store.HEAD}
    body["environment"] = {k: v for k, v in record["environment"].items() if k not in LEFT_OUT}
    text = f"{store.head_line(copy)},\n{json.dumps(body, ensure_ascii=False, separators=(',', ':'))[1:]}\n"
    return gzip.compress(text.encode(), mtime=0)


def _shortened(value: float) -> float:
    """To the microsecond; of less than a millisecond, as drafting without a model takes, four digits."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, min(9, max(6, 3 - math.floor(math.log10(abs(value))))))


def _with_names(config: Config) -> dict[str, Any]:
    """`config` with the names of files and folders in place of their paths, which say how a disk is laid out."""
    return {key: _named(key, value) for key, value in config.items()}


def _named(key: str, value: object) -> object:
    if isinstance(value, dict):
        return _with_names(value)
    if isinstance(value, list):
        return [_named(key, one) for one in value]
    return Path(value).name if key in PLACES and isinstance(value, str) else value


def _local_paths(config: Config) -> list[str]:
    """Folders and files of this machine that a run was given, for its target, its task, and each draft of a cascade."""
    found = []
    for key, value in config.items():
        if isinstance(value, dict):
            found += _local_paths(value)
        elif key in PLACES and isinstance(value, str) and Path(value).is_absolute():
            found.append(value)
    return found
