"""`specbench list`: what can be picked, what of it is usable now, and what the rest needs."""

import csv
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from specbench.cli.choices import (
    DOWNLOAD,
    GROUPS,
    INSTALL,
    KEYS,
    NEEDS,
    NOW,
    READ,
    TRAIN,
    Choice,
    choices,
    of_packages,
    own_files,
)
from specbench.cli.formats import print_rows
from specbench.cli.options import options
from specbench.config.catalogue import choice_names
from specbench.config.paths import conf_dir
from specbench.errors import UserError, closest_first

MEANINGS = {
    NOW: "usable now, with no network",
    DOWNLOAD: "fetched from the hub on first use",
    TRAIN: "after the training that 'from' names",
    INSTALL: "after the installation that 'from' names",
    KEYS: "with the options that 'from' names",
}


USUAL = ("target", "draft", "task", "accept", "tree")  # without a group


def architectures() -> list[dict[str, str]]:
    """The rows of conf/architectures.csv, which tests compare with what decodes."""
    with (conf_dir() / "architectures.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


_LISTED = (*GROUPS, "engine")


def _group(word: str) -> str:
    """The group that `word` names, in the singular or the plural."""
    return word[:-1] if word[:-1] in _LISTED else word


def _no_group(word: str, own: Path | None) -> UserError:
    """What to type in place of `word`, which is no group: the groups that have a choice of that name, else all."""
    having = [group for group in GROUPS if word in {*choice_names(group), *own_files(group, own), *of_packages(group)}]
    if having:
        commands = " and ".join(f"'specbench list {group} --all'" for group in having)
        describes = "describes" if len(having) == 1 else "describe"
        return UserError(f"{word}: is a choice, not a group; {commands} {describes} it")
    return UserError(f"{word}: no such group; choose from {', '.join(closest_first(word, _LISTED))}")


def main(argv: list[str]) -> int:
    """Run `specbench list` with the words `argv`."""
    parser = options(
        "list", "Targets, drafts, tasks and other choices by name; those that are ready to use come first.", rows=True
    )
    parser.add_argument(
        "group", nargs="?", type=_group, metavar=f"{{{','.join(_LISTED)}}}", help=f"default: {', '.join(USUAL)}"
    )
    parser.add_argument("--all", action="store_true", help="what each is, where it comes from and what it needs")
    arguments = parser.read(argv)
    if arguments.group not in (None, *_LISTED):
        raise _no_group(arguments.group, arguments.config_dir)
    if arguments.group == "engine":
        from specbench.experiment.runnable_engines import engines_here

        rows = engines_here()
        print_rows(arguments.format, [asdict(row) for row in rows], lambda: print("\n".join(row.line for row in rows)))
        return 0
    groups = [arguments.group] if arguments.group else USUAL
    found = [choice for group in groups for choice in choices(group, arguments.config_dir)]
    is_short = not arguments.all and arguments.group in (None, "target")
    print_rows(arguments.format, [asdict(choice) for choice in found], lambda: (_names if is_short else _draw)(found))
    return 0


PAPERS = re.compile(r"t5|flan-t5|gpt")  # the families of the paper's models
# Targets by what they are for; the first that holds names a target's line.
KINDS: dict[str, Callable[[Choice], bool]] = {
    "ships": lambda one: one.origin.startswith("ships"),
    "chat models": lambda one: one.default_task == "mt-bench",
    "T5 and GPT": lambda one: PAPERS.match(one.name) is not None,
    "random weights": lambda one: one.origin.startswith("random"),
    "others": lambda one: True,
}


def _names(found: Sequence[Choice]) -> None:
    """The choices as names, a line for each kind of target, and for each need of the other groups."""
    for group, members in groupby(found, key=lambda choice: choice.group):
        print(f"{group}s" if group in READ else group)
        kinds: dict[str, list[str]] = {}
        for one in members:
            kind = next(kind for kind, holds in KINDS.items() if holds(one)) if group == "target" else one.needs
            kinds.setdefault(kind, []).append(one.name)
        for kind in [*KINDS, *NEEDS]:
            if names := [name for name in kinds.get(kind, ()) if name != "hub"]:
                print(textwrap.fill(", ".join(names), WIDTH, initial_indent=f"  {kind:<17}", subsequent_indent=" " * 19,
                                    break_on_hyphens=False))  # fmt: skip
    needed = {choice.needs for choice in found if choice.group != "target"}
    for needs in (one for one in NEEDS if one in needed):
        meaning = MEANINGS[needs].replace("'from' names", "column 'from' of specbench list --all names")
        print(f"{needs}: {meaning}")
    print(ANY_MODEL)
    print(f"what each is: specbench list --all, or specbench list {' | '.join(GROUPS[1:])}")
    print("what runs on this machine, and why: specbench list engine")


WIDTH = 118
ANY_MODEL = (
    "any model of the hub: target=OWNER/NAME[@REVISION]; any folder: target=./FOLDER; the same with draft=. "
    "Your own rows: task=./FILE.jsonl[.gz]"
)


def _draw(found: Sequence[Choice]) -> None:
    from specbench.report.console import terminal

    console = terminal(soft_wrap=False)
    if not console.is_terminal:
        console.width = 160
    for _, members in groupby(found, key=lambda choice: choice.group):
        console.print(_table(list(members)))
        console.print()
    if {choice.group for choice in found} == {"target"}:
        console.print(_architectures())
        console.print()
    for needs in dict.fromkeys(choice.needs for choice in found):
        console.print(f"{needs}: {MEANINGS[needs]}")
    if KEYS in {choice.needs for choice in found if choice.group == "target"}:
        console.print(ANY_MODEL)
    if len({choice.group for choice in found}) > 1:
        more = [*(group for group in GROUPS if group not in USUAL), "engine"]
        console.print(f"more: {', '.join(f'specbench list {group}' for group in more)}")


def _architectures() -> object:
    """The engine that decodes each architecture, as tests saw it on a CPU with random weights."""
    from rich.table import Table

    rows = architectures()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("architecture", "model_type", "engine=auto", "engines", "trees", "batches", "invariance"):
        table.add_column(column, overflow="fold", no_wrap=column == "model_type")
    for row in rows:
        table.add_row(*row.values())
    return table


def _table(members: Sequence[Choice]) -> object:
    """The choices of a group, with a line between those that need different things."""
    from rich.table import Table

    columns = {"name": members[0].group, "needs": "usable", "origin": "from"}
    columns |= {"default_task": "default task"} if any(choice.default_task for choice in members) else {}
    columns |= {"time": "time"} if any(choice.time for choice in members) else {}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, title in {**columns, "note": "note"}.items():
        table.add_column(title, overflow="fold", no_wrap=column in ("name", "needs", "default_task"))
    for _, same_needs in groupby(members, key=lambda choice: choice.needs):
        for choice in same_needs:
            table.add_row(*(str(getattr(choice, column) or "") for column in (*columns, "note")))
        table.add_row()
    return table
