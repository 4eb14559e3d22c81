"""Checkpoints of a training that are whole: a kill or a full disk leaves part of one.

A checkpoint is whole if the digests written after it match its files.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from specbench import border
from specbench.config.places import home
from specbench.files import digest, write_atomically
from specbench.train.recipe_schema import Recipe
from specbench.train.trainers import seconds_in

CHECKPOINTS = "checkpoints"
SECONDS = "seconds.txt"  # that the training has taken, beside them
KEPT = {  # what lies in the folder of a training before its first checkpoint
    "tokenizer": "the fitted tokenizer", "target-greedy.jsonl": "the target's greedy outputs",
    "target-sampled.jsonl": "its sampled outputs",
}  # fmt: skip


def json_object(file: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if it holds none."""
    try:
        found = border.parse(border.read_bytes(file))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


WHOLE = "whole.json"
NUMBER = re.compile(r"checkpoint-(\d+)")
OF_A_PROCESS = re.compile(r"rng_state_\d+\.pth")  # written by each of several processes in its own time


class MarksWhole(TrainerCallback):
    """Writes the digests of a checkpoint's files into it when all are written."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and checkpoint.is_dir():
            write_atomically(checkpoint / WHOLE, json.dumps(_digests(checkpoint), indent=1), "output=FOLDER")


def last_whole(output: Path, told: bool = True) -> Path | None:
    """The last checkpoint that is whole; None without one. `told`: each that is skipped is said on stderr."""
    folder = output / CHECKPOINTS
    there = [place for place in folder.iterdir() if place.is_dir()] if folder.is_dir() else []
    for place in sorted((one for one in there if NUMBER.fullmatch(one.name)), key=step_of, reverse=True):
        if (fault := _fault(place)) is None:
            return place
        if told:
            print(f"{place}: {fault}; it is skipped", file=sys.stderr)
    return None


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was written."""
    found = NUMBER.fullmatch(checkpoint.name)
    assert found is not None
    return int(found[1])


def has_ended(recipe: Recipe, output: Path, checkpoint: Path) -> bool:
    """Whether all steps are done, or all minutes are over."""
    minutes, clock = recipe.optim.max_minutes, output / SECONDS
    if step_of(checkpoint) >= recipe.optim.max_steps:
        return True
    return minutes is not None and clock.is_file() and (seconds_in(clock) or 0.0) >= 60 * minutes


def _fault(checkpoint: Path) -> str | None:
    """Why a checkpoint cannot be resumed; None if it is whole."""
    marked = json_object(checkpoint / WHOLE)
    if marked is None:
        return "this checkpoint is unfinished"
    found = _digests(checkpoint)
    damaged = [name for name, known in marked.items() if found.get(name) != known]
    return f"this checkpoint is damaged ({', '.join(damaged)})" if damaged else None


def _digests(checkpoint: Path) -> dict[str, str]:
    return {
        file.name: digest(file)
        for file in sorted(checkpoint.iterdir())
        if file.is_file() and file.name != WHOLE and not OF_A_PROCESS.fullmatch(file.name)
    }


def interrupted(recipe: Recipe) -> str:
    """What Ctrl-C leaves of a training, and what the same command does with it."""
    output = Path(home(recipe.output))
    checkpoint = last_whole(output, told=False)
    if checkpoint is None:
        kept = [what for name, what in KEPT.items() if (output / name).exists()]
        return (
            f"interrupted before the first checkpoint (save_steps={recipe.save_steps}): the same command starts again "
            f"from step 0{', with ' if kept else ''}{' and '.join(kept)}"
        )
    if has_ended(recipe, output, checkpoint):
        return "interrupted after the last step: the same command measures what was trained"
    return f"interrupted; the same command resumes from step {step_of(checkpoint)}"
