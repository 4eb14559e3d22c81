"""Small copies of records, to be committed beside the tables and figures made from them.

A copy is the record with times to the microsecond, without what says nothing about the run, compressed. A record that
names a folder of this machine is not copied: nobody else could repeat it.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specbench.files import write_atomically
from specbench.records.frame import Records, kept_folder

LEFT_OUT = ("platform",)  # of the environment: the kernel's build says more of the host than of the run


def keep(records: Records, say: Callable[[str], None]) -> list[Path]:
    """Copy every record, and remove copies that newer records replace. Returns the copies."""
    folder = kept_folder(records.results)
    wanted = set(records.every["run_id"])
    for file in folder.glob("*.json.gz"):
        if file.name.removesuffix(".json.gz") not in wanted:
            file.unlink()
    files = []
    for run_id in sorted(wanted):
        record = records.whole(run_id)
        if local := _local_paths(record["config"]):
            say(f"{run_id}: not kept, it names {local[0]} of this machine")
            continue
        files.append(write_atomically(folder / f"{run_id}.json.gz", compact(record)))
    return files + _keep_alphas(records.results, folder / "alpha", say)


def _keep_alphas(results: Path, folder: Path, say: Callable[[str], None]) -> list[Path]:
    """The tables of `specbench alpha`, without the scores of every token."""
    files = []
    for file in sorted((results / "alpha").glob("*.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        if local := [path for config in record["configs"] for path in _local_paths(config)]:
            say(f"{record['alpha_id']}: not kept, it names {local[0]} of this machine")
            continue
        copy = {key: record[key] for key in ("schema", "alpha_id", "rows")}
        files.append(write_atomically(folder / file.name, json.dumps(copy, ensure_ascii=False, indent=1) + "\n"))
    return files


def compact(record: dict[str, Any]) -> bytes:
    """The copy's bytes, the same for the same record. Its first line is the head, as in `runs/`."""
    head = {"schema": record["schema"], "run_id": record["run_id"], "summary": record["summary"]}
    body = {key: _rounded(value) for key, value in record.items() if key not in head}
    body["environment"] = {k: v for k, v in record["environment"].items() if k not in LEFT_OUT}
    body["config"] = record["config"] | {"results": "results"}
    first = json.dumps(head, ensure_ascii=False)[:-1]
    text = f"{first},\n{json.dumps(body, ensure_ascii=False, separators=(',', ':'))[1:]}\n"
    return gzip.compress(text.encode(), mtime=0)


def _rounded(value: Any, digits: int = 6) -> Any:
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, list):
        return [_rounded(item, digits) for item in value]
    if isinstance(value, dict):
        return {key: _rounded(item, digits) for key, item in value.items()}
    return value


def _local_paths(config: dict[str, Any]) -> list[str]:
    """Folders and files of this machine that a run was given."""
    named = [part.get(key) for part in config.values() if isinstance(part, dict) for key in ("path", "train_path")]
    return [path for path in named if path and Path(path).is_absolute()]
