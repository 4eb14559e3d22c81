"""Documents of `specbench alpha` by id or path, and what their drafts scored at each token."""

from collections.abc import Iterator
from pathlib import Path

from specbench.errors import UserError
from specbench.records.alphas import alpha_files
from specbench.records.documents import read_document
from specbench.records.schema import Row

KEY = "alpha_id"  # what tells such a document from others


def find_scored(results: str | Path, name: str) -> Row | None:
    """The document of `specbench alpha` that `name` means: its path, its id, or a unique part of it; None if none.

    Raises:
        UserError: several match, or the file is damaged.
    """
    if Path(name).is_file():
        return _read(Path(name)) if Path(name).suffix == ".json" else None
    found = [file for file in alpha_files(Path(results)) if name in file.stem]
    found = [file for file in found if file.stem == name] or found
    if len(found) > 1:
        raise UserError(f"{name}: is in the ids of {len(found)} documents of specbench alpha; give more of it")
    return _read(found[0]) if found else None


def betas(document: Row) -> Iterator[tuple[Row, list[Row]]]:
    """Each row of a document under Algorithm 1 with the scores of its draft, text by text.

    Raises:
        UserError: a kept copy, which holds the table alone.
    """
    settings = {setting["temperature"]: setting for setting in document.get("settings", ())}
    for row in document["rows"]:
        if row["lossy"] or row["accept"] != "exact":
            continue
        setting = settings.get(row["temperature"])
        if setting is None or row["draft"] not in setting.get("drafts", {}):
            raise UserError(
                f"{document[KEY]}: holds no scores of single tokens, as kept copies do not; run specbench alpha again"
            )
        yield row, setting["drafts"][row["draft"]]


def _read(file: Path) -> Row | None:
    try:
        document = read_document(file)
    except (ValueError, OSError) as error:
        raise UserError(f"{file}: is not a record of specbench ({error})") from error
    return document if KEY in document else None
