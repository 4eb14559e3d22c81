"""Which engine runs a network: eager, a captured step over static caches, or that as CUDA graphs; what 'auto' is.

Every engine gives the same tokens in fp32. `auto` proves that of the engine it takes on a few tokens, and falls back
to eager, with the reason, where a network cannot be captured or its capture disagrees.
"""

import time
from typing import Any

import torch

from specbench.errors import UserError
from specbench.models.base import Prompt
from specbench.models.cudagraph import CudaGraphModel
from specbench.models.eager import EagerModel
from specbench.models.static import CompiledModel, StaticModel

# Of the largest logit: how far two ways of computing the same may lie apart.
ROUNDING = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
TRIED_TOKENS = 6
KINDS: dict[str, type[StaticModel]] = {"static": StaticModel, "cudagraph": CudaGraphModel, "compile": CompiledModel}


def with_engine(engine: str, network: Any, vocabulary_size: int, eos_ids: frozenset[int]) -> EagerModel:
    """`network` run by `engine`: auto | eager | static | cudagraph | compile."""
    on_cuda = network.device.type == "cuda"
    if engine == "cudagraph" and not on_cuda:
        raise UserError(f"engine=cudagraph: needs a CUDA device, and this is {network.device}; use engine=auto")
    if engine == "auto":
        engine = {"cuda": "cudagraph", "cpu": "static"}.get(network.device.type, "eager")
        fall_back = True
    else:
        fall_back = False
    if engine == "eager":
        return EagerModel(network, vocabulary_size, eos_ids)
    try:
        return _checked(KINDS[engine], network, vocabulary_size, eos_ids)
    except Exception as error:  # whatever a model's own code raises when it is captured
        if not fall_back:
            raise UserError(f"engine={engine}: {_reason(error)}; use engine=auto or engine=eager") from error
        model = EagerModel(network, vocabulary_size, eos_ids)
        model.fell_back = _reason(error)
        return model


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _checked(kind: type[StaticModel], network: Any, vocabulary_size: int, eos_ids: frozenset[int]) -> StaticModel:
    """The captured model, after its logits were compared with the eager ones. Adds the time of that to its warm-up."""
    began = time.perf_counter()
    model = kind(network, vocabulary_size, eos_ids)
    tokens = [2 + 3 * index % max(1, vocabulary_size - 2) for index in range(TRIED_TOKENS)]
    prompt = Prompt(tuple(tokens), tuple(tokens[:1])) if model.is_encoder_decoder else Prompt((), tuple(tokens[:2]))
    ours, eager = model.start(prompt), EagerModel(network, vocabulary_size, eos_ids).start(prompt)
    for fed in (tokens[:1], tokens[1:5], tokens[5:]):
        logits, exact = ours.extend(fed), eager.extend(fed)
        apart = (logits - exact).abs().max() / exact.abs().max()
        if not apart <= ROUNDING[network.dtype]:
            raise RuntimeError(
                f"the captured step differs from the model's own by {float(apart):.2g} of the largest logit"
            )
        ours.rollback(ours.length - 1)
        eager.rollback(eager.length - 1)
    model.warmup_s = time.perf_counter() - began
    return model
