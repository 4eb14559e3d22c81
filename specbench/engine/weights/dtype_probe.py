"""How long the linear maps of a decoder take in bfloat16 and in float32, for a target's shape with random weights.

They are most of a step. The kernels are those that the engine would use.
"""

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.pytorch_utils import Conv1D

from specbench.config.model import ModelConfig
from specbench.engine.capture.lower import Lowering, PackedWeights, lower
from specbench.engine.capture.nodes import capture, copied, example_sizes
from specbench.engine.capture.rewrite import simplify
from specbench.engine.native.lowering import lower_native
from specbench.engine.weights.load import layers_of, shape_of
from specbench.engine.weights.pretrained import LAYERS, network_of_shape

DTYPES = (torch.bfloat16, torch.float32)
TOKENS = (1, 8)  # a plain step, and one that verifies
ROUNDS = 12
MOST_WEIGHTS = 2**24  # 64 MB in fp32: more than most caches hold
MOST_MAPS = 24  # capturing more would take longer than timing them
LOWERINGS: dict[str, Lowering] = {"native": lower_native, "static": lower}
SMALL_TABLE = 16


def linear_maps(model: ModelConfig, key: str) -> list[tuple[int, int]]:
    """(inputs, outputs) of the linear maps of all decoder layers of `model`, from only its config.

    Raises:
        UserError, MachineError: as `load_model` on a config.
        Exception: whatever `transformers` raises if it cannot make such a network.
    """
    one = copy.deepcopy(shape_of(model, key))
    for name in LAYERS:
        if hasattr(one, name):
            setattr(one, name, 1)
    if getattr(one, "layer_types", None):
        one.layer_types = one.layer_types[:1]
    auto = AutoModelForSeq2SeqLM if one.is_encoder_decoder else AutoModelForCausalLM
    with torch.device("meta"):
        decoder = network_of_shape(auto, one).get_decoder()
    of_layer = [
        (module.weight.shape[0], module.weight.shape[1])
        if isinstance(module, Conv1D)
        else (module.in_features, module.out_features)
        for module in decoder.modules()
        if isinstance(module, nn.Linear | Conv1D)
    ]
    return of_layer * layers_of(model, key)


def probe(maps: Sequence[tuple[int, int]], engine: str, threads: int) -> tuple[float, float]:
    """Seconds that `maps` take in bfloat16 and in float32 by `engine` (native | static | eager), timed in turn.

    Each is the fastest run over one token plus the fastest over eight.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            runs = {dtype: _runs(_limited(maps), dtype, engine) for dtype in DTYPES}
            times = {(dtype, tokens): list[float]() for dtype in DTYPES for tokens in TOKENS}
            for _ in range(ROUNDS):
                for (dtype, tokens), found in times.items():
                    ids, run = torch.zeros(1, tokens, dtype=torch.long), runs[dtype][tokens > 1]
                    began = time.perf_counter()
                    run(ids)
                    found.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(before)
    short, wide = (sum(min(times[dtype, tokens]) for tokens in TOKENS) for dtype in DTYPES)
    return short, wide


def _limited(maps: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The first `MOST_MAPS` of `maps`, of `MOST_WEIGHTS` weights in all; one that is too large is cut."""
    found, room = list[tuple[int, int]](), MOST_WEIGHTS
    for inputs, outputs in maps[:MOST_MAPS]:
        outputs = min(outputs, max(1, room // inputs))
        found.append((inputs, outputs))
        if (room := room - inputs * outputs) <= 0:
            break
    return found


def _runs(maps: Sequence[tuple[int, int]], dtype: torch.dtype, engine: str) -> tuple[Callable[..., Any], ...]:
    """Functions of token ids that compute the maps, for one token and for several."""
    weights = [torch.full((outputs, inputs), 0.01, dtype=dtype) for inputs, outputs in maps]
    tables = {inputs: torch.ones(SMALL_TABLE, inputs, dtype=dtype) for inputs, _ in maps}

    def all_maps(ids: Tensor) -> tuple[Tensor, ...]:
        # Inputs that differ: maps of one input would be merged into one.
        rows = {inputs: functional.embedding(ids, table) for inputs, table in tables.items()}
        return tuple(
            functional.linear(rows[weight.shape[1]] * (1 + number / 256), weight)
            for number, weight in enumerate(weights)
        )

    if engine == "eager":
        return all_maps, all_maps
    (tokens,) = example_sizes({size for shape in maps for size in shape} | {SMALL_TABLE}, 1)
    packed, lowering = PackedWeights(), LOWERINGS[engine]
    several = simplify(capture(all_maps, [torch.zeros(1, tokens, dtype=torch.long)]))
    return lowering(copied(several), packed, True), lowering(several, packed, False)
