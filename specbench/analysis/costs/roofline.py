"""A model's roofline on this machine, from a copy of as many bytes as its weights and products of matrices."""

from collections.abc import Callable
from functools import cache, partial
from statistics import median
from time import perf_counter

import torch

from specbench.engine.session import Model
from specbench.theory import Roofline

MOST_BYTES = 2**28  # that are copied: more than any cache holds, and a larger copy is no faster
WARM_UP, REPEATS = 3, 20
SIDE = {"cpu": 512, "cuda": 4096}  # of matrices that fit a processor's caches, and that fill a GPU


def weight_bytes(model: Model, dtype: torch.dtype) -> float:
    """Bytes of weights that one decoding step reads."""
    return model.operations / 2 * dtype.itemsize


def roofline(model: Model, dtype: torch.dtype) -> Roofline:
    """The roofline of `model` in seconds."""
    device, experts = model.device, model.experts
    size = weight_bytes(model, dtype)
    return Roofline(
        size / bytes_per_second(int(min(max(size, 1), MOST_BYTES)), device),
        model.operations / 2 / multiply_adds_per_second(device, dtype),
        0.0 if experts is None else 2 * experts.of_a_token / model.operations,
    )


def bytes_per_second(size: int, device: torch.device) -> float:
    """Bytes that this device reads and writes per second when it copies `size` bytes.

    `size` is the size of the weights, so that weights that fit into a cache profit from it here as they do in a step.
    """
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _seconds(partial(target.copy_, source), device)


@cache
def multiply_adds_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """Multiply-adds a second of this device's fastest product in `dtype` or in fp32.

    A processor without instructions for bf16 multiplies it as fp32, and torch's products of bf16 are slow there.
    """
    side = SIDE.get(device.type, SIDE["cuda"])

    def product(kind: torch.dtype) -> Callable[[], object]:
        left, right = (torch.ones(side, side, dtype=kind, device=device) for _ in range(2))
        return partial(torch.mm, left, right, out=torch.empty_like(left))

    # The slower of the two may take a tenth of a second a product.
    products = [product(kind) for kind in {dtype, torch.float32}]
    fastest = min(products, key=lambda one: _seconds(one, device, warm_up=1, repeats=2))
    return side**3 / _seconds(fastest, device)


def _seconds(work: Callable[[], object], device: torch.device, warm_up: int = WARM_UP, repeats: int = REPEATS) -> float:
    """The median time of `work`."""
    found = []
    for _ in range(warm_up + repeats):
        began = perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(perf_counter() - began)
    return median(found[warm_up:])
