"""`specbench list`: what can be picked, what of it is usable now, and what the rest needs."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

from specbench.cli.choices import GROUPS, KEYS, MEANINGS, Choice, choices
from specbench.cli.formats import print_rows
from specbench.cli.options import options

USUAL = ("target", "draft", "task", "accept", "tree")  # without a group


def main(argv: list[str]) -> int:
    """Run `specbench list` with the words `argv`.

    Raises:
        UserError: a word that cannot be read, or a file that is not what the verb reads.
    """
    parser = options(
        "list",
        "Targets, drafts, tasks and other choices by name; those that are ready to use come first.",
        rows=True,
    )
    parser.add_argument("group", nargs="?", choices=GROUPS, help=f"default: {', '.join(USUAL)}")
    arguments = parser.read(argv)
    groups = [arguments.group] if arguments.group else USUAL
    found = [choice for group in groups for choice in choices(group, arguments.config_dir)]
    print_rows(arguments.format, [asdict(choice) for choice in found], lambda: _draw(found))
    return 0


def _draw(found: Sequence[Choice]) -> None:
    from specbench.report.terminal import terminal

    console = terminal(soft_wrap=False)
    if not console.is_terminal:
        console.width = 160
    for _, members in groupby(found, key=lambda choice: choice.group):
        console.print(_table(list(members)))
        console.print()
    for needs in dict.fromkeys(choice.needs for choice in found):
        console.print(f"{needs}: {MEANINGS[needs]}")
    if KEYS in {choice.needs for choice in found if choice.group == "target"}:
        console.print(
            "any model of the hub: target=OWNER/NAME[@REVISION]; any folder: target=./FOLDER; the same with draft=. "
            "Your own rows: task=./FILE.jsonl[.gz]"
        )
    if len({choice.group for choice in found}) > 1:
        console.print(f"more: {', '.join(f'specbench list {group}' for group in GROUPS if group not in USUAL)}")


def _table(members: Sequence[Choice]) -> object:
    """The choices of a group, with a line between those that need different things."""
    from rich.table import Table

    columns = {"name": members[0].group, "needs": "usable", "origin": "from"}
    columns |= {"default_task": "default task"} if any(choice.default_task for choice in members) else {}
    columns |= {"time": "time"} if any(choice.time for choice in members) else {}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, title in {**columns, "note": "note"}.items():
        table.add_column(title, overflow="fold", no_wrap=column in ("name", "needs", "default_task"))
    for _, alike in groupby(members, key=lambda choice: choice.needs):
        for choice in alike:
            table.add_row(*(str(getattr(choice, column) or "") for column in (*columns, "note")))
        table.add_row()
    return table
