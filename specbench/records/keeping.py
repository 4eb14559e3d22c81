"""Small copies of records, committed together with the tables and figures drawn from them.

A copy has what these draw from (`records.kept_form`): times with four significant digits, or to the microsecond, a
summary made from these times, and nothing that says nothing about the run. A record that names a folder of this machine
is not copied, since nobody else could repeat it; of a relative path the copy has only the name.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specbench import border
from specbench.border import Unreadable
from specbench.environment import CHANGES
from specbench.errors import MachineError
from specbench.files import write_atomically
from specbench.recorded import from_json, to_json
from specbench.records import store
from specbench.records.alpha_document import KeptAlphaDocument
from specbench.records.catalog import kept_file, kept_folder
from specbench.records.documents import read_document, write_document
from specbench.records.frame import Records
from specbench.records.kept_form import ENDING, FOLDER, shared_file, small
from specbench.records.run_record import Config, PromptRecord, RunRecord

LOCAL = "local"  # in the results folder: what is drawn from records that were not kept
DIRTY = "it comes from code with uncommitted changes; commit them and run it again, or give --dirty"
PLACES = ("path", "train_path", "corpus", "cache_dir")  # keys of a config that name files and folders
SHARED = re.compile(rb'"shared":"([0-9a-f]+)"')  # as a copy names its file of prompts
LEFT_OUT = ("platform",)  # of the environment: the kernel's build says more of the host than of the run
DERIVED = ("prompts", "shown", "explanation")  # of a record: they follow from what a copy holds
# Times of single steps and passes, which have four significant digits.
STEPS = (
    "steps_s", "passes_s", "draft_s", "verify_s", "accept_s", "draft_run_s", "verify_run_s", "loop_s",
)  # fmt: skip


class Copy(NamedTuple):
    """A kept record, and the file that it shares with other records of the same prompts."""

    content: bytes
    digest: str
    shared: bytes


def keep(
    records: Records,
    say: Callable[[str], None],
    resummarised: Callable[[RunRecord], RunRecord] | None = None,
    dirty: bool = False,
    typical: Callable[[RunRecord], int] | None = None,
) -> list[Path]:
    """Copy every record of `records`; returns the copies.

    A copy is removed if a newer record of the same config on the same machine replaces it.

    Args:
        records: all of a folder.
        say: gets a line for each record that is not copied, and for each copy that is removed.
        resummarised: makes the summary of a record anew from its raw prompts, so that a copy agrees with its rounded
            times (`analysis.summary.resummarised`); None: summaries remain as the run made them.
        dirty: also copy records of code with uncommitted changes, which nobody else can have. A copy that is there
            already stays.
        typical: the place of the prompt that a figure of the run shows (`report.marked_passes.typical_prompt`), which
            keeps all its draft tokens; None: the first.
    """
    folder = kept_folder(records.results)
    files = []
    removed = 0
    for run_id in records.disturbed:
        say(f"{run_id}: not kept, the machine was shared or held back while it was timed")
    for run_id in sorted([*records.all_runs["run_id"], *records.served["run_id"]]):
        record = records.whole(run_id)
        if local := _local_paths(record["config"]):
            say(f"{run_id}: not kept, it names {local[0]} of this machine")
            continue
        file = kept_file(records.results, run_id)
        is_copy = records.catalog.head(run_id).file == file
        if not is_copy and not dirty and is_dirty(record["environment"]):
            say(f"{run_id}: not kept, {DIRTY}")
            continue
        files.append(file)
        if not is_copy:
            whole = rounded(record)
            place = typical(record) if typical else 0
            write_copy(file, compact(resummarised(whole) if resummarised else whole, place))
        for old in records.replaced(run_id):
            if (copy := kept_file(records.results, old)).is_file():
                say(f"{old}: copy removed, {run_id} is newer and of the same config")
                copy.unlink()
                removed += 1
    if removed:
        _remove_unshared(folder)
    return files + _keep_alphas(records.results, folder / "alpha", say, dirty)


def _remove_unshared(folder: Path) -> None:
    """Remove the files of prompts that no copy in `folder` names; none if a copy cannot be read."""
    named: set[str] = set()
    for file in folder.glob(f"*{ENDING}"):
        try:
            named |= {found.decode() for found in SHARED.findall(border.read_bytes(file))}
        except Unreadable:
            return
    for file in (folder / FOLDER).glob(f"*{ENDING}"):
        if file.name.removesuffix(ENDING) not in named:
            file.unlink()


def drawing_folder(records: Records, folder: Path, say: Callable[[str], None]) -> Path:
    """`folder`, or `local/` if drawing these records there would replace a drawing of the kept records.

    The folders beside `kept/` are committed with it. A record without a copy in there is drawn into `local/` instead.
    """
    committed = kept_folder(records.results).is_dir() and folder.resolve().parent == records.results.resolve()
    used = {
        *records.all_runs["run_id"],
        *records.served["run_id"],
        *records.disturbed,
    }  # a drawing names disturbed records under it
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
    """A record whose raw prompts have times as a copy has them."""
    return {**record, "prompts": from_json(list[PromptRecord], _shortened(to_json(record["prompts"])))}


def compact(record: RunRecord, place: int = 0) -> Copy:
    """The copy, the same for the same record. Its first line is the head, as in `runs/`.

    `place` is the place of the prompt that the figure of the run shows; the copy of a copy shows the same prompt.
    """
    head = {**record, "config": {**_with_names(record["config"]), "results": "results"}}
    body = {key: value for key, value in record.items() if key not in (*store.HEAD, *DERIVED)}
    body["environment"] = {k: v for k, v in record["environment"].items() if k not in LEFT_OUT}
    kept, shared = small(record, place)
    text = json.dumps(_shortened(to_json(body | kept)), ensure_ascii=False, separators=(",", ":"))
    packed = _packed(f"{store.head_line(head)},\n{text[1:]}\n")
    return Copy(packed, kept["kept"]["shared"], _packed(json.dumps(shared, ensure_ascii=False, indent=0)))


def write_copy(file: Path, copy: Copy) -> None:
    """Write a kept record, and the file of its prompts if no other has them."""
    if not (shared := shared_file(file.parent, copy.digest)).is_file():
        write_atomically(shared, copy.shared)
    write_atomically(file, copy.content)


def _packed(text: str) -> bytes:
    """`text` by xz. Raises MachineError if this Python has none."""
    try:
        import lzma
    except ImportError as error:
        raise MachineError("this Python was built without lzma, by which kept records are compressed") from error
    # Text compresses best with 16 contexts of the byte before it and without alignment.
    preset = 9 | lzma.PRESET_EXTREME
    filters = [{"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": 2**22, "lc": 4, "lp": 0, "pb": 0}]
    return lzma.compress(text.encode(), check=lzma.CHECK_CRC32, filters=filters)


def _shortened(value: Any, key: str = "") -> Any:
    """Plain JSON with times of fewer digits: single steps with four, others to the microsecond.

    Times of less than a millisecond, as of drafting without a model, also have four digits.
    """
    if isinstance(value, float) and value and math.isfinite(value):
        digits = 3 - math.floor(math.log10(abs(value)))
        return round(value, min(9, digits if key in STEPS else max(6, digits)))
    if isinstance(value, dict):
        return {name: _shortened(item, name) for name, item in value.items()}
    return [_shortened(item, key) for item in value] if isinstance(value, list) else value


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
