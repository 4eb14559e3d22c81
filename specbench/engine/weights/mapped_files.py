"""The weights of a checkpoint, mapped from its files and brought to the device one by one.

`torch.load` maps a `.bin` of torch 1.6 and later. Older files it reads whole, so they are mapped here: a few pickles,
then each storage's length (8 bytes) and data. The unpickler is torch's weights-only unpickler, not public; tried on
torch 2.11 and 2.13.
"""

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import safe_open
from torch import Tensor
from torch._weights_only_unpickler import Unpickler
from torch.serialization import MAGIC_NUMBER
from torch.storage import TypedStorage
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME, cached_file
from transformers.utils.hub import get_checkpoint_shard_files

from specbench.hub import hub_failure

LENGTH = 8  # bytes in front of each storage's data: how many numbers it has


@dataclass(frozen=True)
class MappedTensor:
    """A tensor in a file. `[...]` brings it to `device` in the file's dtype, as `transformers` asks for it."""

    stored: Any  # a tensor over the map, or a slice of a safetensors file
    device: torch.device

    def __getitem__(self, index: Any) -> Tensor:
        tensor: Tensor = self.stored[index]
        if tensor.data_ptr() % tensor.element_size() == 0:
            return tensor.to(self.device)
        # In a file of before torch 1.6 numbers lie anywhere, so nothing computes with them: they move as bytes.
        width, count = tensor.element_size(), tensor.numel()
        start = tensor.storage_offset() * width
        raw = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage(), start, (count * width,), (1,))
        if self.device.type == "cpu" and count:
            # Pages of its own: what malloc takes for so many sizes in turn it does not give back.
            moved = torch.frombuffer(mmap(-1, count * width), dtype=torch.uint8).copy_(raw)
        else:
            moved = raw.to(self.device)
        return moved.view(tensor.dtype).view(tensor.shape)


def find_file(source: str, name: str, pinned: Mapping[str, Any], key: str | None = None) -> Path | None:
    """A file of a folder or a repository, fetched if needed; None if it is not there.

    With `key`, what the config calls the source, a failure of the hub raises UserError or MachineError.
    """
    try:
        found = cached_file(source, name, **{key: value for key, value in pinned.items() if key != "gguf_file"})
        return None if found is None else Path(found)  # None: some versions raise nothing for a folder without it
    except Exception as error:  # OSError if a file is not there; a connection's errors are of many kinds
        known = None if key is None else hub_failure(error, key, source, pinned.get("revision"))
        if known is not None:
            raise known from error
        if not isinstance(error, OSError):
            raise
        return None


def weight_files(source: str, pinned: Mapping[str, Any], key: str | None = None) -> list[Path]:
    """Files with the weights of a folder or a repository, safetensors if there are any; empty if there are none.

    `key`: see `find_file`.
    """
    for whole, index in ((SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME), (WEIGHTS_NAME, WEIGHTS_INDEX_NAME)):
        if (file := find_file(source, whole, pinned, key)) is not None:
            return [file]
        if (file := find_file(source, index, pinned, key)) is not None:
            return [Path(shard) for shard in get_checkpoint_shard_files(source, str(file), **pinned)[0]]
    return []


def mapped_weights(files: Sequence[Path], device: torch.device) -> dict[str, MappedTensor]:
    """The state dict in `files`, each tensor for `device`.

    Raises SafetensorError, UnpicklingError or ValueError if a file is damaged or holds more than weights.
    """
    found: dict[str, Any] = {}
    for file in files:
        if file.suffix == ".safetensors":
            opened = safe_open(file, framework="pt")
            found |= {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (it is no mapping)
        elif zipfile.is_zipfile(file):
            found |= torch.load(file, map_location="cpu", mmap=True, weights_only=True)
        else:
            found |= _old_weights(file)
    return {name: MappedTensor(stored, device) for name, stored in found.items()}


def _old_weights(file: Path) -> Mapping[str, Tensor]:
    """The tensors in a file of before torch 1.6, over the map of it."""
    with open(file, "rb") as opened:
        sizes: dict[str, int] = {}
        _unpickled(opened, lambda key, size: torch.UntypedStorage(sizes.setdefault(key, size), device="meta"))
        order, at, places = _read(opened), opened.tell(), {}
        for key in order:
            places[key] = at + LENGTH
            at += LENGTH + sizes[key]
        if opened.seek(0, 2) < at:
            raise ValueError(f"{file.name} is cut off: {opened.tell()} of {at} bytes")
        whole = torch.UntypedStorage.from_file(str(file), False, at)
        opened.seek(0)
        state = _unpickled(opened, lambda key, size: whole[places[key] : places[key] + size])
    return {name: tensor.contiguous() for name, tensor in state.items()}


def _unpickled(opened: BinaryIO, storage: Callable[[str, int], Any]) -> Mapping[str, Tensor]:
    """The state dict at the start of the file, over what `storage` gives for a key and a number of bytes."""
    if _read(opened) != MAGIC_NUMBER:
        raise ValueError("neither an archive nor a checkpoint of torch before 1.6")
    _read(opened)  # the protocol's version
    _read(opened)  # the machine that wrote it

    def persistent(saved: tuple[Any, ...]) -> TypedStorage:
        kind, storage_type, key, _, numbers, view = saved
        if kind != "storage" or view is not None:
            raise ValueError(f"a checkpoint of torch before 1.6 with a {kind} that is not read here")
        dtype: torch.dtype = storage_type.dtype
        return TypedStorage(wrap_storage=storage(key, numbers * dtype.itemsize), dtype=dtype, _internal=True)

    unpickler = Unpickler(opened, encoding="utf-8")
    unpickler.persistent_load = persistent  # type: ignore[method-assign]
    state: Mapping[str, Tensor] = unpickler.load()
    return state


def _read(opened: BinaryIO) -> Any:
    """The next pickle, which holds plain values."""
    return Unpickler(opened, encoding="utf-8").load()
