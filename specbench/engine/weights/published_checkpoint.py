"""The files of a checkpoint that others published: its `config.json` and its tensors."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench import border
from specbench.engine.weights.mapped_files import find_file, mapped_weights, weight_files
from specbench.errors import UserError, first_line

CONFIG = "config.json"
# `transformers` writes "no limit" as an integer of 31 digits, which is beyond the limits of what is read here.
UNLIMITED = re.compile(r'("model_max_length":\s*)\d{19,}')


def read_config(source: str, pinned: Mapping[str, Any], key: str) -> dict[str, Any]:
    """`read_object` of the config."""
    return read_object(source, CONFIG, pinned, key)


def read_object(source: str, name: str, pinned: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The JSON object in a file of a folder or a repository, which the keywords `pinned` fix; empty without the file.

    Raises UserError if it is no JSON object, and the errors of `find_file` with `key`.
    """
    file = find_file(source, name, pinned, key)
    try:
        content = {} if file is None else border.parse(UNLIMITED.sub(r"\1null", border.read_text(file)), finite=False)
    except (ValueError, OSError) as error:
        raise UserError(f"{key}: {name} of {source} is not valid JSON: {first_line(error)}") from error
    if not isinstance(content, dict):
        raise UserError(f"{key}: {name} of {source} is no JSON object")
    return content


def read_tensors(files: Sequence[Path], source: str, device: torch.device, key: str) -> dict[str, Tensor]:
    """All tensors in `files` of `source`, on `device`, by their names.

    Raises UserError if a file is damaged or holds more than weights.
    """
    try:
        return {name: tensor[...] for name, tensor in mapped_weights(files, device).items()}
    except Exception as error:  # SafetensorError, UnpicklingError, ValueError, RuntimeError
        raise UserError(f"{key}: {files[0].name} of {source} cannot be read: {first_line(error)}") from error


def read_weights(source: str, pinned: Mapping[str, Any], key: str, device: torch.device) -> dict[str, Tensor]:
    """All tensors of a folder or a repository, on `device`, by their names. Raises UserError if they cannot be read."""
    files = weight_files(source, pinned, key)
    if not files:
        raise UserError(f"{key}: {source} has neither model.safetensors nor pytorch_model.bin")
    return read_tensors(files, source, device, key)


def require_all(
    expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor], theirs: Callable[[str], str], key: str, source: str,
    kind: str,
) -> None:  # fmt: skip
    """Raise UserError at the first tensor that is missing, not known, or of another shape than the config says.

    Args:
        expected: the draft's state dict.
        tensors: the checkpoint's, by the same names.
        theirs: what its files call a tensor.
        key: the config's name for the draft.
        source: the folder or repository.
        kind: the draft's.
    """
    for name, tensor in expected.items():
        if name not in tensors:
            raise UserError(f"{key}: {source} has no tensor {theirs(name)}: it is no checkpoint of draft={kind}")
        if tensors[name].shape != tensor.shape:
            said = f"is {list(tensors[name].shape)}; its {CONFIG} and this target say {list(tensor.shape)}"
            raise UserError(f"{key}: {theirs(name)} of {source} {said}")
    for name in tensors:
        if name not in expected:
            raise UserError(f"{key}: {source} has a tensor {theirs(name)}, which draft={kind} does not support")
