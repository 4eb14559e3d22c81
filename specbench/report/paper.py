"""The paper's printed numbers (`experiments/paper.yaml`), and the runs that fill each of its tables and figures."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import yaml

from specbench.config.paths import experiments_dir
from specbench.errors import UserError

Content = dict[str, Any]  # of a YAML file


@cache
def paper() -> Content:
    """Every printed number, by table and figure."""
    return _read("paper")


@cache
def experiment(name: str) -> Content:
    """Title, place, sweep and choices of a table or figure."""
    return _read(name)


def label(name: str) -> str:
    """A model or task as the paper writes it; our own name if the paper lacks it."""
    names: dict[str, str] = paper()["names"]
    return names.get(name, name)


def checkpoint(name: str, own: bool = False) -> str:
    """Our model `name` with its size, if it stands for one of the paper's: 't5-xxl (T5 1.0 11B)'.

    `own`: the run read its weights from a folder of the user's.
    """
    checkpoints: dict[str, str] = paper()["checkpoints"]
    if name not in checkpoints:
        return name
    return f"{name} ({'own weights' if own else checkpoints[name]})"


def checkpoints(row: Mapping[str, Any]) -> dict[str, str]:
    """Our models of a row that has `target`, `draft` and, if a record fills it, `own_weights`."""
    own = row.get("own_weights")
    parts = own.split() if isinstance(own, str) else []  # a row without a record has none
    return {part: checkpoint(row[part], part in parts) for part in ("target", "draft")}


def fill(name: str, task: str | None = None) -> str:
    """The command that fills the table or figure `name`, or its rows of `task`; empty if nothing is to be run."""
    plan = experiment(name)
    commands: dict[str, str] = plan.get("alpha", {})
    if task in commands:
        return commands[task]
    return plan.get("command") or (f"specbench sweep experiment={plan['sweep']}" if plan["sweep"] else "")


def fills(name: str) -> list[str]:
    """All commands that fill the table or figure `name`."""
    commands: dict[str, str] = experiment(name).get("alpha", {})
    return list(commands.values()) or list(filter(None, [fill(name)]))


def fill_twin(name: str) -> str:
    """The command that fills it with the models that ship; empty if those cannot."""
    plan = experiment(name)
    if "command" in plan:
        return ""
    verb = "alpha" if "alpha" in plan else "sweep"
    return f"specbench {verb} experiment={plan['sweep']}-mini" if plan["sweep"] else ""


def takes(name: str) -> str:
    """How long the sweeps of `name` take and on what; estimates are labelled."""
    return "; ".join(f"{row['what']}: {_time(row)}" for row in experiment(name)["takes"])


def times_of(sweep: str) -> list[str]:
    """How long the sweep of that name takes and on what, as `experiments/` has it."""
    plans = [experiment(file.stem) for file in sorted(experiments_dir().glob("*.yaml"))]
    rows = [row for plan in plans for row in plan.get("takes", ()) if row["what"] == sweep]
    return [_time(row) for row in rows]


def _time(row: Content) -> str:
    return f"{row['time']} on {row['hardware']}{'' if row['measured'] else ' (an estimate)'}"


def _read(name: str) -> Content:
    file = experiments_dir() / f"{name}.yaml"
    try:
        content: Content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}); install specbench again") from error
    return content
