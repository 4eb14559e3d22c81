"""The table and the files of a benchmark."""

from collections.abc import Sequence
from pathlib import Path

from specbench.files import write_atomically
from specbench.formatting import interval, markdown_table
from specbench.records.documents import write_document
from specbench.records.timed_documents import BeamDocument, BenchDocument, BenchRow

NOT_LISTED = ("schema_version", "environment", "rows")  # only in the document


def table(rows: Sequence[BenchRow]) -> str:
    """A Markdown table."""
    cells = []
    for row in rows:
        faster = "" if row.ratio is None else interval(row.ratio, row.low, row.high)
        note = "; ".join(filter(None, [row.note, row.disturbed_by and f"CONTENDED: {row.disturbed_by}"]))
        cells.append([row.part, row.what, _number(row.ours), _number(row.theirs), row.unit, faster, note])
    return markdown_table(["", "what", "ours", "theirs or floor", "unit", "times faster", "note"], cells)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def write(folder: Path, name: str, document: BenchDocument | BeamDocument, shown: str) -> tuple[Path, Path]:
    """`name`.json and `name`.md in `folder`: the document, and its rows as the table `shown` with what it is of."""
    files = folder / f"{name}.json", folder / f"{name}.md"
    write_document(files[0], document, indent=1)
    about = "\n".join(f"- {key}: {value}" for key, value in document.items() if key not in NOT_LISTED)
    write_atomically(files[1], f"# {name}\n\n{about}\n\n{shown}\n")
    return files
