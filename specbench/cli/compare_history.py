"""`specbench compare --history`: each config over the commits of the history, and where it stepped."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.cli.changed import NAMES, contradictory, measured, numbers, percent, require_records, since
from specbench.cli.formats import print_rows
from specbench.cli.options import to_stderr
from specbench.errors import UserError
from specbench.records.run_record import Row
from specbench.report.console import plain_table, wide_console

if TYPE_CHECKING:
    from specbench.analysis.changepoints import StepOf
    from specbench.records.measurements import Measurement


def history(arguments: Namespace) -> int:
    """Draw each config over commits and print its steps, or add records to the history; returns the exit code.

    Raises UserError if there is no history.
    """
    from specbench.analysis.baseline import sound
    from specbench.analysis.changepoints import steps
    from specbench.records.measurements import HISTORY, QUANTITIES, add_to_history, read_history

    folder = Path(arguments.results) / HISTORY
    if arguments.write:
        require_records(arguments.results, arguments.kept)
        now = measured(arguments.results, arguments.kept)
        for line in contradictory(now):
            to_stderr(line)
        added = add_to_history(arguments.results, sound(now))
        to_stderr(f"{folder}: {added} measurements added")
    rows = read_history(arguments.results)
    if not rows:
        raise UserError(f"--results={arguments.results}: {folder} has no measurements; --history --write adds records")
    of_one: dict[str, list[Measurement]] = {}
    for row in rows:
        of_one.setdefault(row["id"], []).append(row)
    found = steps(list(of_one.values()), QUANTITIES)
    listed = [_step(one) for one in found]
    print_rows(arguments.format, listed, lambda: _draw_steps(found, of_one), document=listed)
    from specbench.report.figure import FORMATS, save
    from specbench.report.figures.history import draw
    from specbench.report.style import styled

    with styled():
        drawn = draw(list(of_one.values()), found)
    for file in save(drawn, Path(arguments.output or folder), [form for form in FORMATS if form != "pdf"]):
        to_stderr(str(file))
    return 0


def _step(one: "StepOf") -> Row:
    named = {"run_id": one.first["run_id"], "quantity": one.quantity}
    commits = {"after": one.before["commit"], "at": one.first["commit"], "created": one.first["created"]}
    return named | numbers(one.change, one.q) | commits


def _draw_steps(found: "Sequence[StepOf]", of_one: "dict[str, list[Measurement]]") -> None:
    console = wide_console(160)
    commits = len({row["commit"] for rows in of_one.values() for row in rows})
    if found:
        table = plain_table(("record", "", "change", "95%", "q", "after", "at"), ("record", "after", "at"))
        for one in found:
            table.add_row(
                one.first["run_id"], NAMES.get(one.quantity, one.quantity), *percent(one.change), f"{one.q:.1g}",
                since(one.before), since(one.first),
            )  # fmt: skip
        console.print(table)
    total = sum(map(len, of_one.values()))
    console.print(f"{len(of_one)} configs, {total} measurements, {commits} commits: {len(found)} steps")
