"""Weights in memory from a name in the config, and how many there are before they are loaded (without torch)."""

import math
import re
from pathlib import Path
from typing import TypedDict

from specbench import border
from specbench.border import Unreadable
from specbench.config.model import ModelConfig
from specbench.config.paths import shipped

FP32 = 4  # bytes of a weight in an old .bin
STATED = re.compile(r"\b(\d+(?:\.\d+)?)([MB]) parameters\b")
SCALE = {"M": 10**6, "B": 10**9}
LARGEST_HEADER = 10**8  # bytes, as the safetensors library reads


class _Entry(TypedDict):
    """The description of a tensor in a header."""

    shape: list[int]


def parameters(model: ModelConfig) -> int | None:
    """The number of weights of `model`; None if it is unknown or a file is damaged, which loading reports.

    Counted in the headers of its safetensors, taken from the size of an old `.bin`, or from the note of its choice.
    """
    folder = Path(model.path) if model.path is not None else None
    if folder is None and model.hub is None and model.shipped is not None:
        folder = shipped("models", model.shipped)
    if folder is not None and model.weights == "trained":
        return _in_files(folder)
    stated = STATED.search(model.note or "")
    return round(float(stated.group(1)) * SCALE[stated.group(2)]) if stated else None


def _in_files(folder: Path) -> int | None:
    files = sorted(folder.glob("*.safetensors"))
    if files:
        try:
            return sum(map(_tensors, files))
        except (Unreadable, OSError):
            return None
    return sum(file.stat().st_size for file in folder.glob("pytorch_model*.bin")) // FP32 or None


def _tensors(file: Path) -> int:
    """The numbers in a safetensors file, from only its header."""
    with border.open_regular(file) as opened:
        size = int.from_bytes(opened.read(8), "little")
        if size > LARGEST_HEADER:
            raise Unreadable(f"a header of {size} bytes")
        header = border.parse(opened.read(size), dict[str, dict[str, object]])
    header.pop("__metadata__", None)
    border.check(header, dict[str, _Entry])
    return sum(math.prod(entry["shape"]) for entry in header.values())
