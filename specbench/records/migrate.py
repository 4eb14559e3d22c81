"""Records of older versions as this version has them."""

from specbench.config.names import task_label
from specbench.records.schema import SCHEMA_VERSION, Row

RENAMED = {"strayed": "total_variation", "kept": "accept_probability"}  # version 1 to 2
DROPPED = ("schema", "units", "speedup_explained")


def migrated(record: Row) -> Row:
    """A record, or its first line, converted to this version. Raises ValueError for a newer version.

    Columns that an older version lacks remain absent.
    """
    version = int(record.get("schema_version") or record.get("schema") or 1)
    if version > SCHEMA_VERSION:
        raise ValueError(f"it has schema version {version}, and this specbench reads versions up to {SCHEMA_VERSION}")
    new = record if version == SCHEMA_VERSION else _from_version_1(record)
    return _labelled(new) if "summary" in new else new


def _from_version_1(record: Row) -> Row:
    new = _renamed(record) | {"schema_version": SCHEMA_VERSION}
    if "summary" in record:
        new["summary"] = _renamed(record["summary"])
        if "lenience" in record["summary"]:
            new["summary"]["lenience"] = [_renamed(row) for row in record["summary"]["lenience"]]
    if "rows" in record:
        new["rows"] = [_renamed(row) for row in record["rows"]]
    if "prompts" in record:
        new["prompts"] = [_renamed(prompt) for prompt in record["prompts"]]
        for prompt in new["prompts"]:
            if "rule" in prompt:
                prompt["rule"] = _renamed(prompt["rule"])
    return new


def _renamed(row: Row) -> Row:
    return {RENAMED.get(key, key): value for key, value in row.items() if key not in DROPPED}


def _labelled(record: Row) -> Row:
    """Rename the task of runs over the user's rows, so that they are never confused with the task itself."""
    summary, task = record["summary"], record.get("config", {}).get("task", {})
    if task.get("path") is None or summary.get("task") != task["name"]:
        return record
    return record | {"summary": summary | {"task": task_label(task["name"], task["path"])}}
