"""LoRA adapters: a folder or a repository of peft, whose weights are merged into its base model's at load.

The merged model is an ordinary one: p, α and certificates are of base and adapter together.
"""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specbench import border
from specbench.config.model import ADAPTER, ModelConfig, adapter_in, name_of
from specbench.config.places import place_in
from specbench.engine.out_of_memory import is_out_of_memory
from specbench.engine.weights.mapped_files import find_file
from specbench.engine.weights.pretrained import peft_config_in
from specbench.errors import MachineError, UserError, first_line

NAMED_BASE = "base_model_name_or_path"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")  # the first that exists; a .bin holds only tensors


def adapter_of(model: ModelConfig, key: str) -> str | None:
    """The folder of the adapter that `model` is, fetched if needed; None if it is a whole model.

    A repository is asked only if `base` says that it holds an adapter.
    """
    if model.path is not None:
        folder = Path(model.path)
        if model.base is None and adapter_in(folder) is None:
            return None
        # If a folder lacks one of them, peft would ask the hub for a repository of the folder's name.
        if not (folder / ADAPTER).is_file() or not any((folder / name).is_file() for name in WEIGHTS):
            raise UserError(f"{key}.path={model.path}: holds no adapter of peft ({ADAPTER} and {WEIGHTS[0]})")
        return model.path
    if model.hub is None or model.base is None:
        return None
    pinned = {"revision": model.revision}
    config = find_file(model.hub, ADAPTER, pinned, key)
    if config is None or not any(find_file(model.hub, name, pinned, key) for name in WEIGHTS):
        raise UserError(f"{key}.base={model.base}: {model.hub} holds no adapter of peft ({ADAPTER} and its weights)")
    return str(config.parent)


def base_of(model: ModelConfig, key: str) -> ModelConfig:
    """The model that `model` adapts; itself if it is a whole model.

    Raises UserError if the base is named nowhere or is itself an adapter.
    """
    if model.path is None and model.base is None:
        return model
    folder = adapter_of(model, key)
    if folder is None:
        return model
    base = model.base or _named_base(Path(folder), key)
    place = place_in(base)
    if place is None:  # a word: a folder beside, or none
        place = {"path": base}
    found = ModelConfig(**place)
    if model.base is None and found.path is not None and not Path(found.path).exists():
        # Its own file names the base, relative to the folder of its training or to its own.
        found = ModelConfig(path=os.path.normpath(Path(folder) / found.path))
    if found.path is not None and not Path(found.path).exists():
        name = name_of(model)
        raise UserError(f"{key}: {name} adapts {base}, which is not here; give {key}.base=./FOLDER or OWNER/NAME")
    if found.path is not None and adapter_in(Path(found.path)) is not None:
        raise UserError(f"{key}.base={base}: is an adapter itself; merge it first")
    return found


def _named_base(folder: Path, key: str) -> str:
    try:
        content = border.parse(border.read_bytes(folder / ADAPTER), finite=False)
    except (ValueError, OSError) as error:
        raise UserError(f"{key}: {ADAPTER} of {folder} cannot be read: {first_line(error)}") from error
    named = content.get(NAMED_BASE) if isinstance(content, dict) else None
    if not isinstance(named, str) or not named:
        raise UserError(f"{key}: {ADAPTER} of {folder} names no base; give {key}.base=./FOLDER or OWNER/NAME")
    return named


def require_peft(key: str) -> None:
    """Raise UserError if the package that reads adapters is missing."""
    if find_spec("peft") is None:
        raise UserError(f"{key}: LoRA adapters are read by the package peft: pip install 'specbench-toolkit[peft]'")


def merged(network: Any, folder: str, key: str) -> Any:
    """`network` with the adapter in `folder` merged into its weights.

    Raises:
        UserError: the adapter does not fit it, or lacks a tensor.
        MachineError: memory does not suffice.
    """
    require_peft(key)
    from peft import PeftModel
    from peft.utils.save_and_load import get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict

    fault = f"{key}: the adapter in {folder} does not fit its base"
    try:
        config = peft_config_in(folder)
        adapted = PeftModel(network, config)
        weights = load_peft_weights(folder, device=str(network.device))
        # All that such an adapter saves: also whole modules, and magnitudes.
        absent = sorted(get_peft_model_state_dict(adapted, save_embedding_layers=False).keys() - weights.keys())
        without_place = [] if absent else set_peft_model_state_dict(adapted, weights).unexpected_keys
    except Exception as error:  # peft raises ValueError, RuntimeError, KeyError, TypeError, SafetensorError, ...
        raise _not_merged(error, fault, network, key) from error
    if absent:
        raise UserError(f"{fault}: {len(absent)} tensors are missing: {absent[0]}")
    if without_place:
        raise UserError(f"{fault}, which has no place for {len(without_place)} of its tensors: {without_place[0]}")
    try:
        return adapted.merge_and_unload(safe_merge=True)
    except Exception as error:  # ValueError if the sum is not finite; adapters of other kinds cannot be merged
        raise _not_merged(error, fault, network, key) from error


def _not_merged(error: Exception, fault: str, network: Any, key: str) -> UserError | MachineError:
    if is_out_of_memory(error):
        return MachineError(f"{key}: its adapter does not fit on {network.device} beside it: {first_line(error, 300)}")
    return UserError(f"{fault}: {first_line(error, 300)}")
