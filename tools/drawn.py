"""Draw results/tables and the points of results/figures anew from results/kept: `--check` names the files that differ.

Pictures are not compared, since fonts and libraries change their bytes: a figure's CSV has each of its points.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from specbench.cli.options import FEWEST_PROMPTS
from specbench.files import write_atomically
from specbench.records.frame import Records
from specbench.report.figure import csv_frame
from specbench.report.figures import FIGURES
from specbench.report.figures import build as build_figures
from specbench.report.score import cells, overview, score
from specbench.report.table import ENDINGS, render
from specbench.report.tables import build as build_tables

RESULTS = Path(__file__).parent.parent / "results"
FORMS, SCORE_FORMS = ("markdown", "csv", "latex"), ("markdown", "csv")  # as `make tables` writes them


def drawn(records: Records) -> Iterator[tuple[str, str]]:
    """The files under results/ that follow from records, each with its text."""

    def step() -> None: ...

    for table in build_tables([], records, step):
        yield from ((f"tables/{table.name}.{ENDINGS.get(form, form)}", render(table, form)) for form in FORMS)
    scored = cells(records)
    for table in (overview(scored), score(records, scored)):
        yield from ((f"tables/{table.name}.{ENDINGS.get(form, form)}", render(table, form)) for form in SCORE_FORMS)
    for figure in build_figures(list(FIGURES), records, step):
        yield f"figures/{figure.name}.csv", csv_frame(figure.points).to_csv(index=False)


def main(check: bool) -> int:
    """Write the files that differ; with `check` name them, and files that nothing draws, and exit with 1 instead."""
    wrong, expected = 0, set[str]()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kept").symlink_to(RESULTS / "kept")
        for name, text in drawn(Records(Path(folder), FEWEST_PROMPTS)):  # as `make tables figures`
            expected.add(name)
            file = RESULTS / name
            if file.exists() and file.read_text(encoding="utf-8") == text:
                continue
            wrong += check
            print(f"results/{name}: {'differs from the kept records: make tables figures' if check else 'written'}")
            if not check:
                write_atomically(file, text, name)
    for file in (*(RESULTS / "tables").iterdir(), *(RESULTS / "figures").glob("*.csv")):
        if f"{file.parent.name}/{file.name}" not in expected:
            wrong += check
            print(f"results/{file.parent.name}/{file.name}: nothing draws it")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
