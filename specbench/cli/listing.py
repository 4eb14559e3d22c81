"""`specbench list`: what can be picked, and what of it is usable with no network now."""

import argparse
import itertools
from pathlib import Path
from typing import Any

import hydra
from omegaconf import OmegaConf

from specbench.config import conf_dir
from specbench.config.kinds import DRAFT_KINDS
from specbench.config.paths import shipped

GROUPS = ("target", "draft", "task", "accept")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("specbench list", description="What can be picked, and what is usable offline.")
    parser.add_argument("group", nargs="?", choices=GROUPS, help="default: all")
    group = parser.parse_args(argv).group
    groups = [group] if group else GROUPS

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False, width=None if Console().is_terminal else 160)
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        for group in groups:
            table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
            default_task = ("default task",) if group == "target" else ()
            for title in (group, "offline", "from", *default_task, "note"):
                table.add_column(title, overflow="fold", no_wrap=title in (group, "offline"))
            for file in sorted((conf_dir() / group).glob("*.yaml")):
                if group == "accept":  # nothing to fetch
                    table.add_row(file.stem, "yes", "", escape(_comment(file)))
                    continue
                composed = _compose(group, file.stem)
                choice: Any = OmegaConf.to_container(composed[group])
                usable, origin, note = _facts(choice, group)
                about = [composed.task.name] if group == "target" else []
                # Brackets mean brackets.
                table.add_row(file.stem, *map(escape, (usable, origin, *about, note or _comment(file))))
            console.print(table)
            console.print()
    console.print("offline: yes = usable now with no network; no = not in the local cache yet")
    console.print("any local folder: target.path=FOLDER draft.path=FOLDER; own rows: task.path=FILE.jsonl[.gz]")
    return 0


def _compose(group: str, name: str) -> Any:
    """The choice `name` of `group`; of a target with its default task, which it names by an override."""
    before = ["+task=ende-mini"] if group == "target" else []
    return hydra.compose(overrides=[*before, f"+{group}={name}"])


def _comment(file: Path) -> str:
    """What a file of `conf/` says of itself in its first lines."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines)


def _facts(choice: dict[str, Any], group: str) -> tuple[str, str, str]:
    """Usable offline, where it comes from, and its note."""
    note = str(choice.get("note") or "")
    if choice.get("kind") == "cascade":
        via, inner = choice["via"], choice["inner"]
        usable = [_facts(part, group)[0] for part in (via, inner)]
        return _yes("no" not in usable), f"{via['name']}, drafting with {inner['name']}", note
    kind = DRAFT_KINDS[choice.get("kind") or "model"]
    if not kind.weights:
        return "yes", "fitted on the task's training text" if kind.text else "nothing to fit", note
    if choice.get("path"):
        return _yes((Path(choice["path"]) / "config.json").is_file()), str(choice["path"]), note
    if choice.get("shipped"):
        folder = "data" if group == "task" else "models"
        return _yes(shipped(folder, choice["shipped"]).exists()), "ships with specbench", note
    if kind.inside:
        return "–", f"{group}.path=FOLDER, made by specbench train", note
    hub = choice.get("hub")
    if not hub and group == "task":
        return "yes", "task.path=FILE", note
    if not hub or hub == "???":
        return "–", f"{group}.hub=ID {group}.revision=COMMIT", note
    cached = _task_is_cached(hub) if group == "task" else _model_is_cached(hub, choice.get("revision"))
    return _yes(cached), str(hub), note


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def _model_is_cached(hub: str, revision: str | None) -> bool:
    from huggingface_hub import try_to_load_from_cache

    names = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
    return any(isinstance(try_to_load_from_cache(hub, name, revision=revision), str) for name in names)


def _task_is_cached(hub: str) -> bool:
    from huggingface_hub.constants import HF_HUB_CACHE

    return (Path(HF_HUB_CACHE) / f"datasets--{hub.replace('/', '--')}").is_dir()
