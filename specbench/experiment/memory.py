"""How many bytes a target needs by itself, and with a draft: counted from the tensors that they hold.

A process that measures both has loaded both, so that its peak never belongs to only the target. Counted are the
weights, also in the layouts that kernels read; the tables of drafts without a model (each tensor once, and a shared
tensor for the target); and the keys and values that the longest sequence takes in this engine's sizes. Weights that are
mapped from a file count as if they were read; activations and the working memory of steps do not count.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specbench.engine.batch import bytes_of_cache
from specbench.engine.capture.lower import PackedWeights
from specbench.engine.capture.static import StaticModel
from specbench.engine.paged import is_in_file
from specbench.engine.session import Model, innermost
from specbench.errors import UserError
from specbench.experiment.run_parts import Parts
from specbench.records.numbers import Memory
from specbench.records.run_record import PromptRecord

# Whose objects lead to a draft's modules and tables.
OF_DRAFTS = ("specbench.methods.", "specbench.algorithm.", "specbench.engine.beside.")
Array = np.ndarray[Any, Any]
Storages = dict[int, int]  # bytes by address


def memory_columns(parts: Parts, prompts: Sequence[PromptRecord]) -> Memory:
    """The columns of a record: bytes by part, their ratio, and the peak while prompts were decoded."""
    pass_tokens = max((one.drafted + 1 for p in prompts for one in p["speculative"].passes), default=1)
    written = max(len(prompt[way].tokens) for prompt in prompts for way in ("baseline", "speculative"))
    found = bytes_by_part(parts, written + pass_tokens)
    baseline, both = total(found, "target"), total(found)
    source = "tensors"
    peaks = [most for way in ("baseline", "speculative") if (most := _most(prompts, way)) is not None]
    shared = parts.config.target.device_map or parts.config.target.tp_plan  # by several devices, of which one is asked
    if parts.device.type == "cuda" and len(peaks) == 2 and not shared:
        # The allocator holds the draft in either decoding; what it needs at rest is not the target's.
        at_rest = total(found, "draft_weights") + total(found, "draft_tables") + _pooled(parts)
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
    """Bytes of weights, tables and caches of target and draft, with room for `new_tokens` after the longest prompt."""
    target, models = parts.target, _models(parts)
    weights, tables = bytes_held(target, models, parts.draft)
    prompts = [*parts.prompts, *parts.probe_prompts]
    tokens = max(len(prompt.prefix) for prompt in prompts) + new_tokens
    source, rows = max(len(prompt.source) for prompt in prompts), parts.config.batch
    return {
        "target_weights": weights["target"],
        "target_caches": rows * _cache(target, tokens, source, rows),
        "draft_weights": weights["draft"],
        "draft_caches": rows * sum(_cache(model, tokens, source, rows) for model in models),
        "draft_tables": tables,
    }


def bytes_held(target: Model, models: Sequence[Model], draft: object) -> tuple[dict[str, int], int]:
    """Bytes of the weights of `target` and of `draft`, which runs `models`, and bytes of the draft's tables."""
    of_target, of_draft, of_tables = Storages(), Storages(), Storages()
    of_target.update(_of_module(_network(target)))
    layouts = [_packed(target)]
    for model in models:
        of_draft.update(_of_module(_network(model)))
        layouts.append(_packed(model))
    for one in held_by(draft, [target, *models]):
        if isinstance(one, nn.Module):
            of_draft.update(_of_module(one))
        elif isinstance(one, PackedWeights):
            layouts.append(one)
        else:
            of_tables.update([storage_of(one)])
    for place, packed in enumerate(layouts):
        for weight, laid_out in () if packed is None else packed.pairs():
            # Heads that the target's engine runs are laid out among the target's own weights.
            is_targets = place == 0 and storage_of(weight)[0] in of_target
            (of_target if is_targets else of_draft).update([storage_of(laid_out)])
    weights = {
        "target": sum(of_target.values()),
        "draft": sum(size for address, size in of_draft.items() if address not in of_target),
    }
    return weights, sum(size for address, size in of_tables.items() if address not in {*of_target, *of_draft})


def held_by(draft: object, others: Sequence[object]) -> Iterator[nn.Module | PackedWeights | Tensor | Array]:
    """The modules, layouts, tensors and arrays of `draft` and its parts, without `others` and their contents.

    Read from their attributes. Dictionaries are left out: they hold what was computed for some texts.
    """
    seen, waiting = {id(one) for one in others}, [draft]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, nn.Module | PackedWeights | Tensor | np.ndarray):
            yield one
        elif isinstance(network := getattr(one, "network", None), nn.Module):  # a layer in the target's engine
            waiting += [network, getattr(one, "packed", None)]
        elif isinstance(one, list | tuple):
            waiting += [] if one and isinstance(one[0], int | float | str | bytes) else one
        elif type(one).__module__.startswith(OF_DRAFTS):
            waiting += getattr(one, "__dict__", {}).values()


def _models(parts: Parts) -> list[Model]:
    """The models that the draft runs, without the target."""
    return [model for model in parts.draft.models if model is not parts.target]


def _network(model: Model) -> nn.Module | None:
    """The network of a model; None for anything else."""
    network = innermost(model).network
    return network if isinstance(network, nn.Module) else None


def _packed(model: Model) -> PackedWeights | None:
    """The layouts of its weights, in an engine that makes them."""
    engine = innermost(model)
    return engine.packed if isinstance(engine, StaticModel) else None


def _of_module(module: nn.Module | None) -> Storages:
    held = () if module is None else (*module.parameters(), *module.buffers())
    return {place: 0 if is_in_file(one) else size for one in held for place, size in [storage_of(one)]}


def storage_of(one: Tensor | Array) -> tuple[int, int]:
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


def _pooled(parts: Parts) -> int:
    """The bytes of the draft's caches that stay allocated while the target decodes without it."""
    engines = map(innermost, _models(parts))
    return sum(engine.pool.free_bytes for engine in engines if isinstance(engine, StaticModel))


def _cache(model: Model, tokens: int, source: int, rows: int) -> int:
    """The bytes of a sequence's keys and values; 0 if the network does not tell its caches' shapes."""
    try:
        return bytes_of_cache(model, tokens, source, in_batch=rows > 1)
    except (AttributeError, UserError):
        return 0


def _most(prompts: Iterable[PromptRecord], way: str) -> int | None:
    """The peak memory of a decoding; None if a prompt lacks it."""
    found = [prompt.get("used", {}).get(way, {}).get("peak_bytes") for prompt in prompts]
    known = [peak for peak in found if peak is not None]
    return max(known) if known and len(known) == len(found) else None
