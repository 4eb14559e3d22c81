"""The benchmark's rows as a Markdown table, and any rows with their table as files."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specbench.bench.bench import Row
from specbench.files import write_atomically
from specbench.markdown import markdown_table


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


def write(folder: str | Path, name: str, head: dict[str, Any], rows: Sequence[Any], shown: str) -> tuple[Path, Path]:
    """`name`.json and `name`.md in `folder`: what `rows` (dataclasses) are of, they themselves, and as a table."""
    files = Path(folder) / f"{name}.json", Path(folder) / f"{name}.md"
    write_atomically(
        files[0], json.dumps(head | {"rows": [asdict(row) for row in rows]}, indent=1, ensure_ascii=False) + "\n"
    )
    about = "\n".join(f"- {key}: {value}" for key, value in head.items() if not isinstance(value, dict))
    write_atomically(files[1], f"# {name}\n\n{about}\n\n{shown}\n")
    return files
