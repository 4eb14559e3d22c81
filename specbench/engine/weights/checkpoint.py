"""The files of a checkpoint that others published: its `config.json` and its tensors."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench import border
from specbench.engine.weights.files import find_file, mapped_weights
from specbench.errors import UserError, first_line

CONFIG = "config.json"


def read_config(source: str, pinned: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The config of a folder or a repository, which the keywords `pinned` fix; empty where there is none.

    Raises UserError where it is no JSON object, and what `find_file` raises with `key`.
    """
    file = find_file(source, CONFIG, pinned, key)
    try:
        config = {} if file is None else border.parse(border.read_bytes(file), finite=False)
    except (ValueError, OSError) as error:
        raise UserError(f"{key}: {CONFIG} of {source} is not valid JSON: {first_line(error)}") from error
    if not isinstance(config, dict):
        raise UserError(f"{key}: {CONFIG} of {source} is no JSON object")
    return config


def read_tensors(files: Sequence[Path], source: str, device: torch.device, key: str) -> dict[str, Tensor]:
    """All tensors in `files` of `source`, on `device`, by their names.

    Raises UserError where a file is damaged or holds more than weights.
    """
    try:
        return {name: tensor[...] for name, tensor in mapped_weights(files, device).items()}
    except Exception as error:  # SafetensorError, UnpicklingError, ValueError, RuntimeError
        raise UserError(f"{key}: {files[0].name} of {source} cannot be read: {first_line(error)}") from error
