"""The types of the documents of `alpha`, `recommend`, `load`, `validate`, `bench`, `beam`, of profiles; their writer.

Each is a JSON file, written atomically. `specbench results --schema NAME` prints its JSON Schema.
"""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench import border
from specbench.border import Unreadable
from specbench.files import json_text, note_finished, write_atomically
from specbench.recorded import from_json
from specbench.records.alpha_document import AlphaDocument
from specbench.records.catalog import Damaged
from specbench.records.choosing import LoadDocument, RecommendDocument, ValidateDocument
from specbench.records.run_record import SCHEMA_VERSION, Row
from specbench.records.store import of_this_version
from specbench.records.timed_documents import BeamDocument, BenchDocument

DOCUMENTS: dict[str, type] = {
    "alpha": AlphaDocument,
    "recommend": RecommendDocument,
    "load": LoadDocument,
    "validate": ValidateDocument,
    "bench": BenchDocument,
    "beam": BeamDocument,
}


def write_document(file: Path, document: Mapping[str, object], indent: int | None = None) -> Path:
    """Write `document`, one of the types above without its version, atomically."""
    written = write_atomically(file, json_text({"schema_version": SCHEMA_VERSION, **document}, indent) + "\n")
    note_finished()
    return written


def read_document(file: Path, kind: Any = Row) -> Any:
    """The content of a file, with what the type `kind` requires of it.

    Raises Unreadable if it is damaged, or of another type.
    """
    document = of_this_version(border.parse(border.read_bytes(file), Row))
    border.check(document, kind)
    return from_json(kind, document)


def saved_document(file: Path, kind: Any) -> Any:
    """The content of a file that an earlier command may have written; None if there is none, or it is damaged.

    A warning names a damaged file.
    """
    if not os.path.lexists(file):
        return None
    try:
        return read_document(file, kind)
    except Unreadable as error:
        warnings.warn(f"{file}: is not used, it is damaged ({error})", Damaged, stacklevel=2)
        return None
