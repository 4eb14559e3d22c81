"""Checkpoints whose weights `transformers` reads in their own format: GPTQ, AWQ, compressed-tensors, and the like.

Each format is read by a package of its own, which this project does not install. Networks of such layers run eagerly.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch

from specbench.config.model import QUANTISED
from specbench.errors import UserError

# By `quant_method`: the module that must be there, and the package that has it.
PACKAGES = {
    "gptq": ("gptqmodel", "gptqmodel"), "awq": ("gptqmodel", "gptqmodel"),
    "compressed-tensors": ("compressed_tensors", "compressed-tensors"), "torchao": ("torchao", "torchao"),
    "bitsandbytes": ("bitsandbytes", "bitsandbytes"),
}  # fmt: skip
ON_CUDA = ("gptq", "awq")  # whose kernels were made for it


def quantised_method(config: Any) -> str | None:
    """How the weights of a `transformers` config are quantised; None if they are plain numbers."""
    quantised = getattr(config, QUANTISED, None)
    if quantised is None:
        return None
    found = quantised.get("quant_method") if isinstance(quantised, Mapping) else quantised.quant_method
    return str(getattr(found, "value", found))


def require_quantised(method: str, key: str, name: str, engine: str, device: torch.device) -> None:
    """Raise UserError if weights of this method cannot be read here, or not by this engine."""
    holds, instead = f"{key}: {name} holds {method} weights", "give the checkpoint that they were quantised from"
    if method not in PACKAGES:
        raise UserError(f"{holds}, which are not supported ({', '.join(PACKAGES)} are); {instead}")
    module, package = PACKAGES[method]
    if find_spec(module) is None:
        raise UserError(f"{holds}, which the package {package} reads: pip install {package}, or {instead}")
    if method in ON_CUDA and device.type != "cuda":
        raise UserError(f"{holds}, which need a CUDA device; {instead}")
    if engine not in ("auto", "eager"):
        raise UserError(f"engine={engine}: {key} holds {method} weights, which engine=eager runs; use engine=auto")
