"""GGUF files: llama.cpp's format of weights, config and tokenizer in one file, which `transformers` reads.

On a CPU the native kernels read levels of 8 and 4 bits as the file has them (`kernels.found_levels`); what is stored
otherwise (K-quants, Q4_1) is rounded to 8 bits there. In all other cases weights are unpacked to the run's dtype.
"""

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from specbench.errors import UserError
from specbench.kernels.found_levels import bits_found, in_8_bits

NUMBERS = ("F32", "F16", "BF16", "F64")  # types that are not quantised
SPLIT = "-of-"  # in the name of a part of a file


def require_readable(file: str, key: str) -> None:
    """Raise UserError if the package that reads GGUF is missing, or `file` is one part of several."""
    if find_spec("gguf") is None:
        raise UserError(f"{key}: GGUF files are read by the package gguf: pip install 'specbench-toolkit[gguf]'")
    if SPLIT in Path(file).stem:
        raise UserError(f"{key}: {Path(file).name} is a part of a split file; join them (llama-gguf-split --merge)")


def types_in(file: Path) -> dict[str, str]:
    """The type of each tensor, by its name in the file."""
    gguf: Any = import_module("gguf")
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(str(file)).tensors}


@torch.no_grad()
def settle(network: nn.Module, file: Path) -> str | None:
    """Round the weights of linear maps that are quantised and no levels of 8 or 4 bits to 8 bits, in place.

    Returns in words which weights were kept and which were rounded; None if none is quantised.
    """
    types = types_in(file)
    names = _names(file, network)
    found: dict[str, list[int]] = {}
    for places, weight in _maps(network):
        kind = next((types[name] for place in places if (name := names(place)) in types), "F32")
        if kind in NUMBERS:
            continue
        bits = bits_found(weight)
        if not bits:
            weight.copy_(in_8_bits(weight))
        found.setdefault(kind, []).append(bits)
    kept = [kind for kind, bits in found.items() if all(bits)]
    rounded = [kind for kind in found if kind not in kept]
    if not found:
        return None
    parts = [f"{' and '.join(kept)} weights as they are"] if kept else []
    if rounded:
        parts.append(f"{' and '.join(rounded)} weights rounded to 8 bits: p belongs to the rounded weights")
    return "; ".join(parts)


def _maps(network: nn.Module) -> Iterator[tuple[list[str], Tensor]]:
    """The weight [N, K] of each linear map, with the names that it has in `network`; a tied one once."""
    tied: dict[int, list[str]] = {}
    for name, weight in network.named_parameters(remove_duplicate=False):
        tied.setdefault(weight.data_ptr(), []).append(name)
    seen: set[int] = set()
    for module in network.modules():
        if isinstance(module, (nn.Linear, Conv1D)) and (place := module.weight.data_ptr()) not in seen:
            seen.add(place)
            yield tied[place], module.weight.T if isinstance(module, Conv1D) else module.weight


def _names(file: Path, network: Any) -> Any:
    """A function from a parameter's name in `transformers` to its name in the file; None if it has none."""
    gguf: Any = import_module("gguf")
    field = gguf.GGUFReader(str(file)).fields["general.architecture"]
    by_name = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    architecture = by_name[bytes(field.parts[field.data[0]]).decode()]
    layers = network.config.get_text_config().num_hidden_layers
    found = gguf.get_tensor_name_map(architecture, layers)
    return lambda name: found.get_name(name, try_suffixes=(".weight", ".bias"))
