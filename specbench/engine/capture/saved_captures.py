"""Captures cached on disk: the same network needs to be captured once on a machine.

A capture takes seconds, for it runs the network's Python on stand-ins. Its file lies in the user's cache folder under a
digest of all that it depends on: the network's modules, their settings and configs, its weights (names, shapes, dtypes,
ties and a sample of their numbers), the versions of Python, torch, transformers and of this package's own code. A
network with something that such a digest cannot tell (hooks, methods put on an instance, objects of unknown kinds) is
captured at every start. A file that is damaged is written anew.

Each user of a capture first compares it with the network, cached or not: `engine.selection` for a target or model
draft, `program.rows_agree` for its rows, `engine.beside` for a draft's own layers. Only the shallow parts that
`early-exit` and `layer-skip` draft with are not compared: a fault there changes q, whose tokens are tested as any
others.
"""

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.fx import GraphModule
from transformers import GenerationConfig, PretrainedConfig

from specbench import border
from specbench.engine import placement
from specbench.engine.capture.stored import restored, stored
from specbench.files import PRIVATE, is_own, own_cache, replacing

CAPTURING = ("operations", "capture", "beside")  # rooms whose code determines a capture
SAMPLE = 16  # numbers of each tensor that the digest covers
MOST_FILES = 64  # the oldest make room
LIBRARIES = ("torch", "transformers")  # their versions say what their code is
OWN = frozenset(vars(nn.Module()))  # of every module: its tensors, submodules and hooks
HOOKS = ("_forward_hooks", "_forward_pre_hooks")


class NotDigestible(ValueError):
    """Raised if a network has a setting whose value a digest cannot hold."""


@dataclass(frozen=True)
class Capture:
    """A graph, whether its network makes its own attention mask, and the file that it came from, if any."""

    graph: GraphModule
    masked: bool
    file: Path | None = None


def cached_capture(network: Any, settings: object, make: Callable[[], tuple[GraphModule, bool]]) -> Capture:
    """The capture that `make` makes of `network` with `settings`, from the cache if it is there.

    `make` returns the graph, without merged weights, and whether a mask was asked for.
    """
    try:
        file = own_cache() / f"capture-{_digest(network, settings)}.json"
    except NotDigestible:
        return Capture(*make())
    weights = _tensors(network)
    if (found := _read(file, weights, network.device)) is not None:
        return found
    graph, masked = make()
    # What cannot be stored, or has no place to go, is captured again at the next start.
    with suppress(ValueError, OSError):
        _write(file, json.dumps({"masked": masked, "graph": stored(graph, weights)}))
    return Capture(graph, masked)


def _read(file: Path, weights: Mapping[str, Tensor], device: torch.device) -> Capture | None:
    """The capture in `file`; None if there is none, or it is damaged."""
    try:
        digest, _, content = border.read_text(file).partition("\n")
        if not is_own(file) or digest != hashlib.sha256(content.encode()).hexdigest():
            return None
        document = json.loads(content)  # our own output: the folder belongs to only this user, and the digest is right
        return Capture(restored(document["graph"], weights, device), bool(document["masked"]), file)
    except Exception:  # whatever a file leads to that another version wrote
        return None


def _write(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with replacing(file, PRIVATE) as opened:
        opened.write(f"{hashlib.sha256(content.encode()).hexdigest()}\n{content}".encode())
    files = sorted(file.parent.glob("capture-*.json"), key=lambda one: one.stat().st_mtime)
    for old in files[:-MOST_FILES]:
        old.unlink(missing_ok=True)


def _tensors(network: Any) -> dict[str, Tensor]:
    """Parameters and buffers by name; tied tensors by their first name."""
    return dict(network.named_parameters()) | dict(network.named_buffers())


def _digest(network: Any, settings: object) -> str:
    """A digest of all that a capture depends on: module code, settings, weights, versions. Raises NotDigestible."""
    found = hashlib.sha256()
    versions = [sys.version, torch.__version__, transformers.__version__, _own_code(), str(torch.get_default_dtype())]
    _add(found, [versions, settings, str(network.device)])  # a graph names its GPU by number
    for name, module in network.named_modules(remove_duplicate=False):
        if any(getattr(module, hooks) for hooks in HOOKS):
            raise NotDigestible(f"{name} has hooks")
        _add(found, [name, _class(type(module)), module.training])
        _add(found, {key: _plain(one) for key, one in vars(module).items() if key not in OWN})
    numbers: dict[int, int] = {}
    tensors = [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]
    for name, tensor in tensors:
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.is_meta:
            raise NotDigestible(f"{name} has no numbers")
        first = numbers.setdefault(id(tensor), len(numbers))
        _add(found, [name, first, list(tensor.shape), list(tensor.stride()), str(tensor.dtype)])
    found.update(_sample([tensor for _, tensor in tensors]))
    return found.hexdigest()[:32]


def _add(found: Any, values: object) -> None:
    found.update(json.dumps(values, sort_keys=True).encode())


def _sample(tensors: list[Tensor]) -> bytes:
    """Some numbers of each tensor, spread evenly, as bytes."""
    picked: dict[torch.dtype, list[Tensor]] = {}
    with torch.no_grad():
        for tensor in tensors:
            if tensor.numel():
                flat = tensor.detach().flatten()
                picked.setdefault(tensor.dtype, []).append(flat[:: max(1, len(flat) // SAMPLE)])
        return b"".join(
            torch.cat(each).cpu().view(torch.uint8).numpy().tobytes()
            for _, each in sorted(picked.items(), key=lambda item: str(item[0]))
        )


@lru_cache
def _own_code() -> str:
    """A digest of the code that captures and simplifies."""
    found = hashlib.sha256()
    engine = Path(placement.__file__).parent
    files = [Path(placement.__file__), *(file for room in CAPTURING for file in sorted((engine / room).rglob("*.py")))]
    for file in files:
        found.update(file.read_bytes())
    return found.hexdigest()


def _class(kind: type) -> list[str]:
    """A class by name, with what tells its code: the version of its library, or its file."""
    forward = getattr(getattr(kind, "forward", None), "__code__", None)
    code = hashlib.sha256(b"" if forward is None else forward.co_code).hexdigest()
    return [_named(kind), code]


def _named(one: Any) -> str:
    """A class or function by the name under which it is found, with a digest of its file if it is in no library."""
    module, name = one.__module__, one.__qualname__
    home = sys.modules.get(module)
    found: Any = home
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not one:
        raise NotDigestible(f"{module}.{name} is not what is used")
    if module.partition(".")[0] in LIBRARIES:
        return f"{module}.{name}"
    try:
        file = inspect.getsourcefile(one)
        if file is None:
            raise NotDigestible(f"{module} has no file")
        return f"{module}.{name} {hashlib.sha256(Path(file).read_bytes()).hexdigest()}"
    except (TypeError, OSError) as error:  # built into Python, or its file is gone
        raise NotDigestible(f"{module}.{name} has no file") from error


def _plain(one: Any) -> Any:
    """A module's setting as plain values. Raises NotDigestible."""
    match one:
        case None | bool() | int() | float() | str():
            return one
        case torch.dtype() | torch.device():
            return str(one)
        case GenerationConfig():
            return None  # says nothing of a step
        case PretrainedConfig():
            return [_named(type(one)), one.to_json_string(use_diff=False), one._attn_implementation]
        case dict():
            return sorted([str(key), _plain(item)] for key, item in one.items())
        case list() | tuple():
            return [_plain(item) for item in one]
        case set() | frozenset():
            return sorted(str(_plain(item)) for item in one)
    if is_dataclass(one) and not isinstance(one, type):
        return [_named(type(one)), *([field.name, _plain(getattr(one, field.name))] for field in fields(one))]
    if isinstance(one, type) or inspect.isroutine(one):
        return _routine(one)
    raise NotDigestible(f"{type(one)} in a module")


def _routine(one: Any) -> Any:
    if getattr(one, "__self__", None) is not None and not inspect.isbuiltin(one):
        raise NotDigestible(f"{one} is bound to an object")
    if not hasattr(one, "__qualname__") or getattr(one, "__module__", None) is None:
        raise NotDigestible(f"{one} has no name")
    return _named(one)


def forget(capture_file: Path) -> None:
    """Remove a capture that proved wrong."""
    with suppress(OSError):
        capture_file.unlink(missing_ok=True)
