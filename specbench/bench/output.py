"""The benchmark's rows as a Markdown table, and any rows with their table as files."""

from collections.abc import Sequence
from pathlib import Path

from specbench.bench.bench import Row
from specbench.files import write_atomically
from specbench.markdown import markdown_table
from specbench.records.documents import BeamDocument, BenchDocument, write_document

UNSAID = ("schema_version", "environment", "rows")  # in the document alone


def table(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    cells = []
    for row in rows:
        faster = "" if row.ratio is None else f"{row.ratio:.2f}"
        if row.low is not None and row.high is not None:
            faster += f" [{row.low:.2f}, {row.high:.2f}]"
        cells.append([row.part, row.what, _number(row.ours), _number(row.theirs), row.unit, faster, row.note])
    return markdown_table(["", "what", "ours", "theirs or floor", "unit", "times faster", "note"], cells)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def write(folder: Path, name: str, document: BenchDocument | BeamDocument, shown: str) -> tuple[Path, Path]:
    """`name`.json and `name`.md in `folder`: the document, and its rows as the table `shown` with what it is of."""
    files = folder / f"{name}.json", folder / f"{name}.md"
    write_document(files[0], document, indent=1)
    about = "\n".join(f"- {key}: {value}" for key, value in document.items() if key not in UNSAID)
    write_atomically(files[1], f"# {name}\n\n{about}\n\n{shown}\n")
    return files
