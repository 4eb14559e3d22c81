"""alpha of every pair from all records that measured it: those of runs and of `specbench alpha`.

A record of `specbench alpha` is a file in `alpha/` of the results folder with its table in `rows`.
"""

import warnings
from pathlib import Path

import pandas as pd

from specbench.config.names import falls_with_position
from specbench.records.catalog import kept_folder
from specbench.records.documents import read_document
from specbench.records.frame import Records, measured
from specbench.records.schema import Row

COLUMNS = [
    "target", "draft", "task", "temperature", "top_k", "top_p", "prompts", "tokens", "alpha", "alpha_low", "alpha_high",
    "lenience", "c", "dtype", "hardware", "simulated", "created", "run_id", "own_weights", "falls",
]  # fmt: skip


def alphas(records: Records) -> pd.DataFrame:
    """One row a measurement; `lenience` is as in a run's summary, `run_id` names the record."""
    of_runs = measured(records.every).reindex(columns=COLUMNS)
    scored = pd.DataFrame([row for file in alpha_files(records.results) for row in _rows(file)], columns=COLUMNS)
    scored = scored[~(scored["prompts"] < records.fewest_prompts)]
    both = [frame for frame in (of_runs, scored) if not frame.empty]
    return pd.concat(both, ignore_index=True) if both else of_runs


def alpha_files(results: Path) -> list[Path]:
    """Records of `specbench alpha`: this machine's, and kept copies without an original here."""
    here = sorted((results / "alpha").glob("*.json"))
    names = {file.name for file in here}
    return [
        *here,
        *(file for file in sorted((kept_folder(results) / "alpha").glob("*.json")) if file.name not in names),
    ]


def _rows(file: Path) -> list[Row]:
    try:
        record = read_document(file)
        return [_row(row, record["alpha_id"]) for row in record["rows"]]
    except (ValueError, KeyError, OSError) as error:
        warnings.warn(f"{file}: skipped, it is not a record of specbench alpha ({error})", stacklevel=2)
        return []


def _row(row: Row, alpha_id: str) -> Row:
    lenient = [
        {"lenience": float(lenience), "alpha": i["value"], "alpha_low": i["low"], "alpha_high": i["high"]}
        for lenience, i in row.get("lenient", {}).items()
    ]
    found = {"lenience": lenient or None, "run_id": alpha_id, "falls": falls_with_position(row["draft"])}
    return {key: row.get(key) for key in COLUMNS} | found
