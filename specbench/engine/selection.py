"""The engine of a network: eager, a captured step over static caches, or this step as CUDA graphs; resolves 'auto'.

Every engine gives the same tokens in fp32. A captured step is compared with the network on a few tokens. If a network
cannot be captured or its capture disagrees, `auto` falls back to eager, with the reason, and an engine that was
requested by name raises UserError.

In 16-bit dtypes two correct computations may differ strongly if a network amplifies rounding. Both are then compared
with the network in fp32, and the captured step's error must not be much larger than the network's own.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from specbench.engine import paged
from specbench.engine.capture.invariance_check import make_invariant
from specbench.engine.capture.lower import PackedWeights
from specbench.engine.capture.program import ROUNDING, largest_difference
from specbench.engine.capture.saved_captures import forget
from specbench.engine.capture.static import CompiledModel, StaticModel
from specbench.engine.cuda.graphs import CudaGraphModel
from specbench.engine.eager.model import PLAIN, EagerModel, SessionTraits
from specbench.engine.eager.recurrence import Recurrence
from specbench.engine.experts import Experts
from specbench.engine.native.native_model import NativeModel
from specbench.engine.session import Prompt
from specbench.errors import UserError, first_line


@contextmanager
def in_fp32(network: nn.Module) -> Iterator[None]:
    """A context in which every block of `network` has its weights in fp32 while it runs, and so returns fp32 states.

    A block is an entry of a list of layers, or a module outside of these. An fp32 copy of the whole network would take
    twice the memory of a model that just fits.
    """
    short: dict[nn.Module, dict[nn.Parameter, Tensor]] = {}

    def widen(block: nn.Module, args: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        held = short[block] = {weight: weight.data for weight in block.parameters() if weight.is_floating_point()}
        for weight, values in held.items():
            weight.data = values.float()
        return tuple(_wide(one) for one in args), {name: _wide(one) for name, one in keywords.items()}

    def restore(block: nn.Module, *_: Any) -> None:
        for weight, values in short.pop(block, {}).items():
            weight.data = values
            paged.release(values)

    hooks = []
    for block in dict.fromkeys(_blocks(network)):  # embeddings may stand in several places
        hooks.append(block.register_forward_pre_hook(widen, with_kwargs=True))
        hooks.append(block.register_forward_hook(restore, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The parts of `module` that are widened whole: layers, and modules that have weights of their own."""
    if next(module.parameters(recurse=False), None) is not None:
        yield module
        return
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from _blocks(child)


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


MOST_ERROR = 2.0  # times the module's own error in a short dtype; it was 0.2 to 1.4 for correct captures
PROBED_TOKENS = 6
KINDS: dict[str, type[StaticModel]] = {
    "static": StaticModel,
    "native": NativeModel,
    "cudagraph": CudaGraphModel,
    "compile": CompiledModel,
}

DYNAMIC = "dynamic"  # the type of rotary positions whose frequencies follow from the longest text so far

# What engine=auto tries on a device, the fastest first, before eager.
AUTO = {"cuda": ("cudagraph",), "cpu": ("native", "static")}


def with_engine(
    engine: str,
    network: Any,
    vocabulary_size: int,
    eos_ids: frozenset[int],
    numerics: str = "fast",
    level_bits: int = 0,
    traits: SessionTraits = PLAIN,
) -> EagerModel:
    """A model that runs `network` by `engine`: auto | eager | static | native | cudagraph | compile.

    Args:
        engine: auto is the fastest that this device and network allow; `fell_back` says why a faster one was not taken.
        network: the module.
        vocabulary_size: tokens of the tokenizer; further logits are masked.
        eos_ids: end-of-sequence tokens.
        numerics: invariant | fast | auto (invariant if it costs nothing: native). Invariant logits of a position are
            bitwise the same, however many positions are read at once. If that is not possible, the model is fast, and
            `not_invariant` says why.
        level_bits: the weights of linear maps are rounded to so many bits, see `PackedWeights`.
        traits: what its sessions hand over.

    Raises:
        UserError: the named engine does not run on this device, or cannot capture this network.
    """
    device = network.device.type
    if engine == "cudagraph" and device != "cuda":
        raise UserError(f"engine=cudagraph: needs a CUDA device, and this is {network.device}; use engine=auto")
    if engine == "native" and device != "cpu":
        raise UserError(f"engine=native: its kernels are for a CPU, and this is {network.device}; use engine=auto")
    fell_back = None
    reason = None if engine == "eager" else _why_eager(network)
    if reason is not None:
        if engine != "auto":
            raise UserError(f"engine={engine}: {type(network).__name__} has {reason}; use engine=auto or engine=eager")
        engine, fell_back = "eager", reason
    for name in AUTO.get(device, ()) if engine == "auto" else () if engine == "eager" else (engine,):
        try:
            model: EagerModel = _with_numerics(
                KINDS[name], network, vocabulary_size, eos_ids, numerics, level_bits, traits
            )
        except Exception as error:  # whatever a model's own code raises when it is captured
            if engine != "auto":
                raise UserError(f"engine={engine}: {first_line(error)}; use engine=auto or engine=eager") from error
            fell_back = first_line(error)
        else:
            model.report.fell_back = fell_back
            paged.settle(network)
            return model
    model = EagerModel(network, vocabulary_size, eos_ids, traits)
    model.report.fell_back = fell_back
    model.experts = Experts.noted(network)
    if numerics == "invariant":
        model.report.not_invariant = "engine=eager does not control its kernels"
    return model


def _why_eager(network: Any) -> str | None:
    """The feature of this network that only engine=eager runs, as far as its modules say; None without one."""
    if Recurrence.of(network) is not None:
        return "recurrent states, which only engine=eager rolls back"
    kinds = [getattr(module, "rope_type", None) for module in network.modules()]  # by kind of layer in some families
    if any(DYNAMIC in (kind.values() if isinstance(kind, dict) else (kind,)) for kind in kinds):
        return f"rotary positions that change with the length of a text (rope_type={DYNAMIC}), which no graph holds"
    return None


def _with_numerics(
    kind: type[StaticModel],
    network: Any,
    vocabulary_size: int,
    eos_ids: frozenset[int],
    numerics: str,
    level_bits: int = 0,
    traits: SessionTraits = PLAIN,
) -> StaticModel:
    """The captured model; with invariant kernels, if they are wanted and proved to be; otherwise with the reason."""
    made = partial(checked_capture, kind, network, vocabulary_size, eos_ids, level_bits=level_bits, traits=traits)
    if numerics == "fast" or (numerics == "auto" and kind is not NativeModel):
        return made()
    if kind is CompiledModel:
        model = made()
        model.report.not_invariant = "engine=compile does not control its kernels"
        return model
    model, began = made(invariant=True), time.perf_counter()
    if (reason := make_invariant(model)) is not None:
        model = made()
        model.report.not_invariant = reason
    model.report.warmup_s += time.perf_counter() - began
    return model


def checked_capture(
    kind: type[StaticModel],
    network: Any,
    vocabulary_size: int,
    eos_ids: frozenset[int],
    invariant: bool = False,
    packed: PackedWeights | None = None,
    again: bool = True,
    level_bits: int = 0,
    traits: SessionTraits = PLAIN,
) -> StaticModel:
    """The captured model, its logits compared with the eager logits; the time of that counts as its warm-up.

    With `again`, a capture from the cache on disk that is wrong is forgotten and made anew. Raises RuntimeError if they
    differ by more than rounding.
    """
    began = time.perf_counter()
    eager = EagerModel(network, vocabulary_size, eos_ids)
    own = _probe_logits(eager)  # before its weights are laid out once more
    paged.settle(network)
    model = kind(network, vocabulary_size, eos_ids, packed or PackedWeights(level_bits), invariant, traits)
    paged.settle(network)
    if (reason := _difference(model, eager, own)) is not None:
        if again and model.program.cached is not None:  # a capture that is made now may be right
            forget(model.program.cached)
            return checked_capture(
                kind, network, vocabulary_size, eos_ids, invariant, packed, False, level_bits, traits
            )
        raise RuntimeError(reason)
    model.report.warmup_s = time.perf_counter() - began
    return model


def _difference(captured: StaticModel, eager: EagerModel, own: list[Tensor]) -> str | None:
    """How the captured logits differ from the network's `own` by more than rounding; None if they do not.

    A network in 16 bits may amplify rounding; then both are compared with its logits in fp32.
    """
    network, ours = eager.network, _probe_logits(captured)
    difference = largest_difference(ours, own)
    if difference <= ROUNDING[network.dtype]:
        return None
    message = f"the compiled step differs from the model's own by {difference:.2g} of the largest logit"
    if network.dtype not in (torch.bfloat16, torch.float16):
        return message
    with in_fp32(network):
        exact = _probe_logits(eager)
    if (from_exact := largest_difference(ours, exact)) <= MOST_ERROR * (rounded := largest_difference(own, exact)):
        return None
    return f"{message}, and from fp32 by {from_exact:.2g} where the model's own differs by {rounded:.2g}"


def _probe_logits(model: EagerModel) -> list[Tensor]:
    """Logits of a few runs, over one token and several; each run reads the last token of the run before it again."""
    # Spread over the vocabulary: its first tokens are often special tokens that a model was not trained on, where its
    # rounding is largest.
    tokens = [(index + 1) * model.vocabulary_size // (PROBED_TOKENS + 1) for index in range(PROBED_TOKENS)]
    whole = model.network.config.is_encoder_decoder
    prompt = Prompt(tuple(tokens), tuple(tokens[:1])) if whole else Prompt((), tuple(tokens[:2]))
    model.get_ready(prompt, len(tokens))
    session = model.start(prompt)
    found = []
    for fed in (tokens[:1], tokens[1:5], tokens[5:]):
        found.append(session.extend(fed).float())
        session.rollback(session.length - 1)
    return found
