"""How notes and captions name the records that they come from."""

import pandas as pd

from specbench.records.catalog import digest
from specbench.records.schema import Row
from specbench.records.unproved import UNPROVED


def named(frame: pd.DataFrame) -> str:
    """The digests of records, each with a mark if its rule is lossy or its completions are unproved."""
    return ", ".join(_name(row) for row in frame.to_dict("records"))


def of_proof(frame: pd.DataFrame) -> list[str]:
    """What the mark of unproved records means, if there are any."""
    return [UNPROVED] if any(row.get("unproved") is True for row in frame.to_dict("records")) else []


def _name(row: Row) -> str:
    marks = [mark for mark in ("lossy", "unproved") if row.get(mark) is True]
    return digest(row["run_id"]) + (f" ({', '.join(marks)})" if marks else "")
