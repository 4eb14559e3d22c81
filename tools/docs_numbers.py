"""Fill README and docs with numbers from records: `make docs-numbers`; `--check` only says which page differs.

A page names the source of a number in a comment, and this tool writes what follows it:

- `<!-- from: specbench explain RUN -->`: the fenced block below is what the command prints (a verb that only reads);
- `<!-- from: run RUN -->`: the fenced block below is the screen of that run;
- `<!-- from: artifact readme -->`, `artifact paper`: the table below is that of tools/artifact.py;
- `<!-- from: FILE -->`: the fenced block below is this file, a transcript;
- `<!-- from: FILE § HEADING -->`: the table below is the one under that heading of a Markdown file;
- `<!-- from: FILE.csv column=value … | title, title, … -->`: rows of a table, with columns that `NAMED` has;
- `<!--RUN name-->1.06 [1.01, 1.11]<!---->`: one value of a record's summary, with its interval if it has one.

RUN is the end of a run's name, or all of it; records are those of results/kept.
"""

import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import artifact
import pandas as pd

from specbench.cli import main as specbench
from specbench.errors import UserError
from specbench.records.catalog import Catalog
from specbench.records.store import Result
from specbench.report.console import Screen

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(?m)^(<!-- from: (.+?) -->\n+)(```\w*\n(?s:.*?)\n```|(?:\|.*\n)+)")
VALUE = re.compile(r"<!--([\w-]+) ([\w.]+)-->.*?<!---->")
# title of a column: the columns of a CSV file that it shows, and decimals
NAMED: Mapping[str, tuple[str, int]] = {
    "draft": ("draft", 0), "γ": ("policy gamma_said", 0), "T": ("temperature", 0), "α": ("alpha", 2), "c": ("c", 2),
    "v": ("verify_cost", 2), "tokens a pass": ("tokens_per_pass", 2), "measured": ("speedup_measured", 2),
    "batch": ("batch", 0), "expected": ("expected", 2), "rule": ("accept", 0),
    "pair": ("pair", 0), "speedup": ("speedup", 2), "one process (±%)": ("own", 1), "over processes (±%)": ("over", 1),
    "wider (times)": ("wider", 2), "between processes (%)": ("between", 2),
    "family": ("family", 0), "`model_type`": ("model_type", 0), "engine=auto": ("engine", 0),
    "engines": ("engines", 0), "trees": ("trees", 0), "batches": ("batches", 0), "invariance": ("invariance", 0),
    "alone (tokens/s)": ("tokens_per_second_baseline", 0), "with the draft (tokens/s)": ("tokens_per_second", 0),
}  # fmt: skip


class Source:
    """What the pages draw from: the kept records, and the files of the repository."""

    def __init__(self, kept: Path) -> None:
        """`kept` is a results folder with nothing else in it, so that a page is the same on every machine."""
        self._kept, self._catalog = kept, Catalog(kept)

    def filled(self, page: str) -> str:
        """The text of a page, every named number and block written anew.

        Raises:
            ValueError: a comment names what is not there.
        """
        page = BLOCK.sub(lambda found: found[1] + self._block(found[2], fenced=found[3].startswith("`")), page)
        return VALUE.sub(lambda found: f"<!--{found[1]} {found[2]}-->{self._value(found[1], found[2])}<!---->", page)

    def _block(self, source: str, fenced: bool) -> str:
        first, _, rest = source.partition(" ")
        if first == "specbench":
            return _fence(_printed(lambda: specbench([*rest.split(), "--results", str(self._kept)])))
        if first == "run":
            return _fence(_printed(lambda: Screen(sys.stderr).show(self._result(rest))))
        if first == "artifact" and rest in artifact.TABLES:
            return artifact.TABLES[rest](self._kept) + "\n"
        return _from_file(source, fenced)

    def _result(self, run: str) -> Result:
        record = self._catalog.whole(self._catalog.find(run))
        return Result(Path("results/runs", f"{record['run_id']}.json"), record, reused=False)

    def _value(self, run: str, name: str) -> str:
        summary: Mapping[str, object] = dict(self._catalog.whole(self._catalog.find(run))["summary"])
        column = name if name in summary else f"{name}_measured"
        if summary.get(column) is None:
            raise ValueError(f"{run} {name}: the record has no such value")
        ends = (summary[f"{name}_low"], summary[f"{name}_high"]) if summary.get(f"{name}_low") is not None else None
        return _number(summary[column], 0 if "tokens_per_second" in name else 2, ends)


def _from_file(source: str, fenced: bool) -> str:
    name, _, heading = source.partition(" § ")
    if heading:
        return _table_below((ROOT / name).read_text(encoding="utf-8"), heading, source)
    if fenced:
        return _fence((ROOT / name).read_text(encoding="utf-8"))
    chosen, _, titles = source.partition(" | ")
    name, *conditions = chosen.split()
    return _rows(pd.read_csv(ROOT / name), dict(part.split("=", 1) for part in conditions), titles.split(", "), source)


def _printed(work: Callable[[], object]) -> str:
    said, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        code = work()
    if code:
        raise ValueError(errors.getvalue().strip())
    return said.getvalue()


def _fence(text: str) -> str:
    return "```\n" + "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n```"


def _table_below(text: str, heading: str, source: str) -> str:
    _, found, below = text.partition(f"# {heading}\n")
    lines = [line for line in below.partition("\n#")[0].splitlines() if line.startswith("|")]
    if not found or not lines:
        raise ValueError(f"{source}: no such heading, or no table under it")
    return _markdown(
        [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if set(line) - set("|-: ")]
    )


def _rows(table: pd.DataFrame, conditions: Mapping[str, str], titles: list[str], source: str) -> str:
    for column, value in conditions.items():
        allowed = value.split(",")
        table = table[table[column].map(lambda cell, allowed=allowed: _plain(cell) in allowed)]
    if table.empty and conditions:
        raise ValueError(f"{source}: no such rows")
    if table.empty:  # a file of titles alone, to be measured
        return _markdown([titles, ["–"] * len(titles)])
    rows = [[_cell(row, *NAMED[title]) for title in titles] for _, row in table.iterrows()]
    return _markdown([titles, *rows])


def _cell(row: "pd.Series[object]", columns: str, decimals: int) -> str:
    for column in columns.split():
        if not pd.isna(row[column]):
            low = column.removesuffix("_measured") + "_low"
            ends = (row[low], row[low[: -len("low")] + "high"]) if low in row.index else None
            return _number(row[column], decimals, ends)
    return "–"


def _number(value: object, decimals: int, ends: tuple[object, object] | None) -> str:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return str(value)
    written: Callable[[object], str] = lambda number: f"{number:,.{decimals}f}"  # noqa: E731
    return written(value) + (f" [{written(ends[0])}, {written(ends[1])}]" if ends else "")


def _plain(cell: object) -> str:
    return f"{cell:g}" if isinstance(cell, float) else str(cell)


def _markdown(rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]) + "\n"


def pages() -> list[Path]:
    """README and the pages of docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main(check: bool) -> int:
    """Write the pages that differ; with `check` name them and exit with 1 instead."""
    different = 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kept").symlink_to(ROOT / "results" / "kept")
        source = Source(Path(folder))
        for page in pages():
            text = page.read_text(encoding="utf-8")
            try:
                written = source.filled(text)
            except (ValueError, UserError) as error:
                raise SystemExit(f"{page.relative_to(ROOT)}: {error}") from error
            if written != text:
                different += 1
                print(
                    f"{page.relative_to(ROOT)}: {'differs from its records: make docs-numbers' if check else 'written'}"
                )
                if not check:
                    page.write_text(written, encoding="utf-8")
    return int(check and bool(different))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
