"""`specbench fetch`: fill the local cache with the models and the task of a run, for a machine without a network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from specbench.cli.formats import aside, print_rows
from specbench.cli.options import to_stderr
from specbench.cli.overrides import read
from specbench.cli.run import PICKED
from specbench.cli.usage import usage
from specbench.compose.hydra_app import launch_one
from specbench.config.checks import check
from specbench.config.model import ModelConfig
from specbench.config.schema import RunConfig
from specbench.errors import MachineError

ABOUT = """
Fill the local cache with what a run reads of the hub: the models of target= and draft=, and the rows of task=. Prints
the files and their sizes first, then fetches them; --sizes prints them and fetches nothing. Files that are in the cache
are not fetched again. Copy the cache (HF_HOME), or call it where the network is; the same words with `specbench run`
then need no network.
"""
SIZES = {"--sizes": "print the files and their sizes, and fetch nothing"}
GIGA = 1e9


@dataclass(frozen=True)
class Wanted:
    """A model of the hub, and what the config calls it."""

    key: str
    model: ModelConfig


def main(argv: list[str]) -> int:
    """Run `specbench fetch` with the words `argv`."""
    about = partial(usage, "fetch", ABOUT, RunConfig, groups=PICKED, options=SIZES, words=argv)
    command = read(argv, RunConfig, about, alone=["sizes"])
    task = partial(job, command.form, "sizes" in command.options)
    return launch_one(task, RunConfig, command.argv, "fetch") or 0


def job(form: str, only_sizes: bool, config: RunConfig) -> int:
    """Print the files of the models of `config`, and fetch them and its task's rows."""
    check(config)
    from specbench import hub
    from specbench.loading.model_loader import pinned

    task = config.task
    is_on_hub = task.path is None and task.hub is not None
    if not is_on_hub and next(wanted(config), None) is None:
        print_rows(form, [], lambda: print("nothing to fetch: these models and rows are on this machine"))
        return 0
    if not hub.hub_is_reachable():
        raise MachineError("fetch: the model hub cannot be reached; call it on a machine with a network")
    config = pinned(config, to_stderr)
    found = [(one, hub.files_to_fetch(*_place(one), one.key, one.model.gguf)) for one in wanted(config)]
    rows: list[dict[str, object]] = [
        {
            "option": one.key, "repository": one.model.hub, "commit": one.model.revision, "file": file.name,
            "GB": file.size / GIGA,
        }
        for one, files in found
        for file in files
    ]  # fmt: skip
    total = sum(file.size for _, files in found for file in files) / GIGA
    print_rows(form, rows, lambda: _draw(rows))
    of_task = f", and the rows of {task.hub} ({task.split}), of unknown size" if is_on_hub else ""
    print(f"{total:.2f} GB in {len(rows)} files{of_task}", file=aside(form))
    if only_sizes:
        return 0
    for one, files in found:
        for file in files:
            to_stderr(f"{one.key}: {file.name} of {one.model.hub}, {file.size / GIGA:.2f} GB")
            hub.fetch(*_place(one), one.key, file)
    if is_on_hub:
        from specbench.tasks import fetch_rows

        to_stderr(f"task: {task.hub} ({task.split})")
        fetch_rows(task)
    return 0


def _place(one: Wanted) -> tuple[str, str | None]:
    return str(one.model.hub), one.model.revision


def wanted(config: RunConfig) -> Iterator[Wanted]:
    """The models of `config` that are on the hub, each once."""
    from specbench.engine.weights.adapters import base_of

    found: dict[tuple[str | None, ...], Wanted] = {}
    parts = [("target", config.target)]
    parts += [("draft", one) for one in config.draft.levels() if isinstance(one, ModelConfig)]
    for key, model in parts:
        base = base_of(model, key) if model.path is not None or model.base is not None else model
        for each in {id(model): model, id(base): base}.values():
            if each.path is None and each.hub is not None and each.weights == "trained" and not each.architecture:
                found.setdefault((each.hub, each.revision, each.gguf), Wanted(key, each))
    yield from found.values()


def _draw(rows: list[dict[str, object]]) -> None:
    for row in rows:
        print(f"{row['option']:8}{row['GB']:9.3f} GB  {row['repository']}  {row['file']}")
