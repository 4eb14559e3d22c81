"""alpha of every pair, from runs and from documents of `specbench alpha`, and their scores at each token."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pandas as pd

from specbench import border
from specbench.border import Unreadable
from specbench.config.draft_labels import falls_with_position
from specbench.errors import UserError
from specbench.files import files_in
from specbench.recorded import from_json
from specbench.records.alpha_document import AlphaDocument, AlphaRow, KeptAlphaDocument, ScoredText
from specbench.records.catalog import Damaged, kept_folder
from specbench.records.documents import read_document
from specbench.records.frame import Records, measured
from specbench.records.run_record import Row

COLUMNS = [
    "target", "draft", "task", "temperature", "top_k", "top_p", "prompts", "tokens", "alpha", "alpha_low", "alpha_high",
    "lenience", "c", "dtype", "hardware", "simulated", "created", "run_id", "own_weights", "falls",
]  # fmt: skip


def alphas(records: Records) -> pd.DataFrame:
    """One row a measurement; `lenience` is as in a run's summary, `run_id` names the record."""
    of_runs = measured(records.chains).reindex(columns=COLUMNS)
    scored = pd.DataFrame([row for file in alpha_files(records.results) for row in _rows(file)], columns=COLUMNS)
    scored = scored[~(scored["prompts"] < records.fewest_prompts)]
    both = [frame for frame in (of_runs, scored) if not frame.empty]
    return pd.concat(both, ignore_index=True) if both else of_runs


def alpha_files(results: Path) -> list[Path]:
    """Records of `specbench alpha`: this machine's, and kept copies without an original here."""
    here = files_in(results / "alpha", ".json")
    names = {file.name for file in here}
    return [
        *here,
        *(file for file in files_in(kept_folder(results) / "alpha", ".json") if file.name not in names),
    ]


def _rows(file: Path) -> list[Row]:
    try:
        record = read_document(file, KeptAlphaDocument)
    except Unreadable as error:
        warnings.warn(f"{file}: skipped, it is not a record of specbench alpha ({error})", Damaged, stacklevel=2)
        return []
    return [
        _row(row, record["alpha_id"]) for row in record["rows"] if not (row.get("processing") or row.get("context"))
    ]


def _row(row: Row, alpha_id: str) -> Row:
    lenient = [
        {"lenience": float(lenience), "alpha": i.value, "alpha_low": i.low, "alpha_high": i.high}
        for lenience, i in row.get("lenient", {}).items()
    ]
    found = {"lenience": lenient or None, "run_id": alpha_id, "falls": falls_with_position(row["draft"])}
    return {key: row.get(key) for key in COLUMNS} | found


def find_scored(results: str | Path, name: str) -> AlphaDocument | None:
    """The document of `specbench alpha` that `name` means: its path, its id, or a unique part of it; None if none.

    Raises UserError if several match, or the file is damaged.
    """
    if Path(name).is_file():
        return _read(Path(name)) if Path(name).suffix == ".json" else None
    found = [file for file in alpha_files(Path(results)) if name in file.stem]
    found = [file for file in found if file.stem == name] or found
    if len(found) > 1:
        raise UserError(f"{name}: is in the ids of {len(found)} documents of specbench alpha; give more of it")
    return _read(found[0]) if found else None


def betas(document: AlphaDocument) -> Iterator[tuple[AlphaRow, list[ScoredText]]]:
    """Each row of a document under Algorithm 1 with the scores of its draft, text by text.

    Raises UserError for a kept copy, which holds only the table.
    """
    settings = {setting["temperature"]: setting for setting in document.get("settings", ())}
    for row in document["rows"]:
        if row["lossy"] or row["accept"] != "exact":
            continue
        setting = settings.get(row["temperature"])
        if setting is None or row["draft"] not in setting.get("drafts", {}):
            raise UserError(
                f"{document['alpha_id']}: holds no scores of single tokens, as kept copies do not; run specbench alpha "
                "again"
            )
        yield row, setting["drafts"][row["draft"]]


def _read(file: Path) -> AlphaDocument | None:
    try:
        document = read_document(file)
        if "alpha_id" not in document:
            return None
        border.check(document, KeptAlphaDocument)
        border.check(document["rows"], list[AlphaRow])
    except Unreadable as error:
        raise UserError(f"{file}: is not a record of specbench ({error})") from error
    return cast(AlphaDocument, from_json(AlphaDocument, document))
