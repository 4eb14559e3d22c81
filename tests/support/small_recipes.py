"""Small trainings: keys that make one of seconds, and what it logs."""

import json
from pathlib import Path

SMALL = [
    "optim.max_steps=2",
    "optim.batch_size=2",
    "optim.warmup_steps=0",
    "data.max_target=16",
    "bf16=false",
    "threads=1",
]


def losses(folder: Path) -> list[float]:
    """The training losses that the log in a model's folder has, in order."""
    history = json.loads((folder / "training-log.json").read_text())
    return [float(entry["loss"]) for entry in history if "loss" in entry]
