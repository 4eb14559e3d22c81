"""How many bytes a target needs alone, and with a draft: counted from the tensors that they hold.

A process that measures both has loaded both, so that no peak of it is the target's alone. What the models hold is: the
weights, also in the layouts that kernels read, and other tensors such as constants of captured steps and a draft's
tables (found by walking from the models and the draft to every tensor, each counted once and a tensor of both for the
target), and the keys and values that the longest sequence takes in this engine's sizes. Weights that are mapped from a
file count as if they were read; activations do not count.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType, MappingProxyType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specbench.algorithm.draft import MadeOfDrafts, models_of
from specbench.algorithm.tree_draft import TreeDraft
from specbench.engine.batch import bytes_of_cache
from specbench.engine.buffers import BufferPool, Buffers, TensorCache
from specbench.engine.capture.lower import PackedWeights
from specbench.engine.session import Model
from specbench.errors import UserError
from specbench.experiment.build import Parts
from specbench.records.schema import Memory, PromptRecord

# Attributes that lead to other models, to no tensor, or to the addresses of tensors that are cached elsewhere.
NOT_OURS = ("_shallow", "now", "mark", "vocabulary", "_graph", "_addresses")
LIBRARIES = ("transformers.", "torch.nn.")  # whose modules have tensors nowhere but where torch registers them
ARRAYS = (Tensor, np.ndarray)
OF_WEIGHTS = (nn.Module, PackedWeights)
PLAIN = {str, int, float, bool, bytes, type(None)}
MANY = 64  # entries of a collection whose first tells what the others are


def memory_columns(parts: Parts, prompts: Sequence[PromptRecord]) -> Memory:
    """The columns of a record: bytes by part, their ratio, and the most that was held while prompts were decoded."""
    pass_tokens = max((one["drafted"] + 1 for p in prompts for one in p["speculative"]["passes"]), default=1)
    written = max(len(prompt[way]["tokens"]) for prompt in prompts for way in ("baseline", "speculative"))
    found = bytes_by_part(parts, written + pass_tokens)
    baseline, both = total(found, "target"), total(found)
    source = "tensors"
    peaks = [most for way in ("baseline", "speculative") if (most := _most(prompts, way)) is not None]
    shared = parts.config.target.device_map or parts.config.target.tp_plan  # by several devices, of which one is asked
    if parts.device.type == "cuda" and len(peaks) == 2 and not shared:
        # The allocator holds the draft in either decoding; what it needs at rest is not the target's.
        at_rest = total(found, "draft_weights") + total(found, "draft_buffers")
        baseline, both, source = peaks[0] - at_rest, peaks[1], "allocator"
    if baseline <= 0:  # a model of another kind, whose tensors are not found
        return {}
    return {
        "memory_bytes": both,
        "memory_baseline_bytes": baseline,
        "memory_ratio": both / baseline,
        "memory_source": source,
        "memory_parts": found,
        "memory_peak_bytes": max(peaks, default=None),
    }


def total(found: Mapping[str, int], part: str = "") -> int:
    """The bytes of all parts whose names begin with `part`."""
    return sum(number for name, number in found.items() if name.startswith(part))


def bytes_by_part(parts: Parts, new_tokens: int) -> dict[str, int]:
    """Bytes of weights, buffers and caches of target and draft, with room for `new_tokens` after the longest prompt."""
    held = Held()
    target, draft = parts.target, parts.draft
    held.walk("target", target)
    models = [model for model in models_of(draft) if model is not target]
    held.walk("draft", [draft, *models, *_first_layers(draft, target)])
    prompts = [*parts.prompts, *parts.probe_prompts]
    tokens = max(len(prompt.prefix) for prompt in prompts) + new_tokens
    source, rows = max(len(prompt.source) for prompt in prompts), parts.config.batch
    return {
        "target_weights": held.bytes["target", "weights"],
        "target_caches": rows * _cache(target, tokens, source, rows),
        "target_buffers": held.bytes["target", "buffers"],
        "draft_weights": held.bytes["draft", "weights"],
        "draft_caches": rows * sum(_cache(model, tokens, source, rows) for model in models),
        "draft_buffers": held.bytes["draft", "buffers"],
    }


def _first_layers(draft: object, target: Model) -> list[object]:
    """The models of the target's first layers, or of some of its sublayers, that `draft` and its parts run."""
    made, waiting, found = getattr(_inner(target), "_shallow", {}), [draft], list[object]()
    while waiting:
        one = waiting.pop()
        if (part := getattr(one, "part", None)) in made:
            found.append(made[part])
        waiting += [*(one.parts if isinstance(one, MadeOfDrafts) else ())]
        waiting += [one.draft] if isinstance(one, TreeDraft) else []
    return found


def _cache(model: Model, tokens: int, source: int, rows: int) -> int:
    """The bytes of a sequence's keys and values; 0 where the network does not tell its caches' shapes."""
    try:
        return bytes_of_cache(_inner(model), tokens, source, in_batch=rows > 1)
    except (AttributeError, UserError):
        return 0


def _inner(model: Any) -> Any:
    """The model of an engine, inside those that translate or process its logits."""
    while (inner := getattr(model, "model", None)) is not None:
        model = inner
    return model


def _most(prompts: Iterable[PromptRecord], way: str) -> int | None:
    """The most that was held in a decoding; None where a prompt does not say."""
    found = [prompt.get("used", {}).get(way, {}).get("peak_bytes") for prompt in prompts]
    known = [peak for peak in found if peak is not None]
    return max(known) if known and len(known) == len(found) else None


class Held:
    """Walks from objects to the tensors that they hold, and adds up the bytes of each storage once."""

    def __init__(self) -> None:
        self.bytes = {(whose, part): 0 for whose in ("target", "draft") for part in ("weights", "buffers")}
        self._storages = set[int]()
        self._seen = set[int]()
        self._alive = list[object]()  # what `_seen` names by address

    def walk(self, whose: str, root: object) -> None:
        """Count what is reachable from `root`: `weights` in modules and packed weights, and else `buffers`."""
        found: dict[int, tuple[int, bool]] = {}  # by the storage's address: bytes, and whether they are weights
        waiting = [(root, False)]
        while waiting:
            one, of_weights = waiting.pop()
            if isinstance(one, ARRAYS):  # as often as it is met: it may be a weight only the second time
                address, size = _storage(one)
                found[address] = size, of_weights or found.get(address, (0, False))[1]
            elif id(one) not in self._seen:
                self._seen.add(id(one))
                self._alive.append(one)
                of_weights = of_weights or isinstance(one, OF_WEIGHTS)
                waiting += [(child, of_weights) for child in children(one) if type(child) not in PLAIN]
        for address, (size, of_weights) in found.items():
            if address not in self._storages:
                self._storages.add(address)
                self.bytes[whose, "weights" if of_weights else "buffers"] += size


def _storage(one: "Tensor | np.ndarray[Any, Any]") -> tuple[int, int]:
    """The address and the bytes of the memory that a tensor or an array lies in."""
    if isinstance(one, np.ndarray):
        while isinstance(one.base, np.ndarray):
            one = one.base
        return one.__array_interface__["data"][0], one.nbytes
    if one.device.type == "meta":
        return 0, 0
    if one.layout is not torch.strided:  # oneDNN's own layouts, which have no storage to ask
        return id(one), one.numel() * one.itemsize
    storage = one.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def children(one: object) -> Iterator[object]:
    """The objects that `one` holds, as far as they may lead to tensors."""
    # Keys and values are counted by their sizes; masks and positions of sizes that were met before are no one run's.
    if isinstance(one, Buffers | BufferPool | TensorCache | type):
        return
    if isinstance(one, (dict, MappingProxyType)):
        yield from _unless_plain(one.values(), len(one))
    elif isinstance(one, list | tuple | set):
        yield from _unless_plain(one, len(one))
    elif isinstance(one, partial):
        yield from (one.func, one.args, one.keywords)
    elif isinstance(one, MethodType):
        yield one.__self__
    elif isinstance(one, FunctionType):
        yield from (cell.cell_contents for cell in one.__closure__ or () if _is_full(cell))
        if one.__globals__.get("__name__") not in sys.modules:  # of a step that was made into a function
            yield from one.__globals__.values()
    elif isinstance(one, nn.Module) and type(one).__module__.startswith(LIBRARIES):
        yield from (*one._parameters.values(), *one._buffers.values(), *one._modules.values())
    elif isinstance(one, nn.Module) or type(one).__module__.startswith("specbench"):
        yield from (value for name, value in getattr(one, "__dict__", {}).items() if name not in NOT_OURS)
        slots = getattr(type(one), "__slots__", ())
        yield from (getattr(one, name, None) for name in ((slots,) if isinstance(slots, str) else slots))


def _unless_plain(values: Iterable[object], number: int) -> Iterator[object]:
    """`values`, or nothing of a large collection of numbers or texts."""
    if number and (number <= MANY or type(next(iter(values))) not in PLAIN):
        yield from values


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
