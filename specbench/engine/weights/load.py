"""Weights in memory from a name in the config: a local folder, a hub repository, or a model that ships.

Safe by default: safetensors first, a `.bin` only through torch's weights-only loader, no remote code.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GgufConfig,
)
from transformers.pytorch_utils import Conv1D
from transformers.utils import GENERATION_CONFIG_NAME

from specbench.config.model import ModelConfig, is_gguf, name_of
from specbench.config.paths import shipped
from specbench.engine import paged
from specbench.engine.eager.model import EagerModel, SessionTraits
from specbench.engine.eager.network_parts import return_states
from specbench.engine.out_of_memory import is_out_of_memory
from specbench.engine.saved_heads import read_lookahead_embeddings
from specbench.engine.selection import with_engine
from specbench.engine.weights.adapters import adapter_of, base_of, merged
from specbench.engine.weights.gguf_files import require_readable, settle
from specbench.engine.weights.mapped_files import find_file, mapped_weights, weight_files
from specbench.engine.weights.pretrained import (
    Loaded,
    config_in,
    generation_config_in,
    network_in,
    network_of_shape,
    network_with,
    tokenizer_in,
)
from specbench.engine.weights.published_checkpoint import read_object
from specbench.engine.weights.quantised import quantised_method, require_quantised
from specbench.engine.weights.random_weights import WordNumbers, config_of, random_network
from specbench.engine.weights.short_head import shorten_head
from specbench.errors import MachineError, UserError, first_line
from specbench.hub import hub_failure, hub_is_reachable, is_not_cached, not_cached, silence
from specbench.kernels.found_levels import AS_FOUND
from specbench.kernels.levels import rounded

GGUF_FILE = "gguf_file"  # of `from_pretrained`: the file in the folder or repository
THREADS_OFF = "HF_DEACTIVATE_ASYNC_LOAD"  # transformers' own switch
PAGED = ("auto", "native", "static")  # engines whose kernels lay weights out once more
FEWEST_TOKENS = 8  # fewest tokens of a usable tokenizer
T = TypeVar("T")


def _source(model: ModelConfig, key: str) -> tuple[str, dict[str, str | bool | None]]:
    """The arguments of `from_pretrained`: a folder or id, and keywords."""
    model = base_of(model, key)
    if is_gguf(model):
        place = Path(model.path or "", model.gguf or "")
        require_readable(str(place), key)
        if model.path is None:
            return str(model.hub), {"revision": model.revision, GGUF_FILE: model.gguf}
        if not place.is_file():
            raise UserError(f"{key}.path={place}: there is no such file")
        return str(place.parent), {GGUF_FILE: place.name}
    if model.path is not None:
        folder = Path(model.path)
        if not (folder / "config.json").is_file():
            raise UserError(f"{key}.path={model.path}: there is no config.json in this folder")
        return str(folder), {}
    if model.hub is not None:
        return model.hub, {"revision": model.revision}
    return str(shipped("models", model.shipped or "")), {}


def _from_pretrained(read: Callable[..., T], model: ModelConfig, key: str, where: str = "in memory") -> T:
    """The result of `read(source, **pinned)` for `model`, with its many errors as one line that names the key.

    `where`: what has no room for weights that do not fit.
    """
    source, pinned = _source(model, key)
    model = base_of(model, key)
    from_hub = model.path is None and model.hub is not None
    if from_hub:
        silence()
    if from_hub and not hub_is_reachable():
        pinned["local_files_only"] = True
    try:
        return read(source, **pinned)
    except Exception as error:  # transformers raises OSError, ValueError, SafetensorError, UnpicklingError, ...
        if is_out_of_memory(error):
            raise _no_room(model, key, where, error) from error
        held = str(pinned.get(GGUF_FILE) or "config.json")
        if "local_files_only" in pinned and is_not_cached(error, source, model.revision, held):
            raise not_cached(key, source) from error
        if from_hub and (known := hub_failure(error, key, source, model.revision)) is not None:
            raise known from error
        place = f"{key}.path={model.path}" if model.path is not None else f"{key}: {source}"
        raise UserError(f"{place}: cannot be loaded: {first_line(error, 300)}") from error


def _no_room(model: ModelConfig, key: str, where: str, error: Exception) -> MachineError:
    return MachineError(f"{key}: {name_of(model)} does not fit {where}: {first_line(error, 300)}")


def load_network(model: ModelConfig, key: str, auto: Any, dtype: torch.dtype, device: torch.device) -> Loaded:
    """The network of `model` on `device`. Raises UserError if a weight is missing or of another shape."""

    def read(source: str, **pinned: Any) -> Loaded:
        return _from_files(auto, source, pinned, dtype, device)

    return _from_pretrained(read, model, key, f"on {device}")


def _from_files(auto: Any, source: str, pinned: Mapping[str, Any], dtype: torch.dtype, device: torch.device) -> Loaded:
    """The network in `source` on `device`, its weights mapped and brought there one by one.

    If `device` has memory of its own, host memory holds none of them, and the device's holds one in the file's dtype
    beside those that are ready.
    """
    if quantised_method(config_in(source, **pinned)) is not None:
        return network_in(auto, source, **pinned, dtype=dtype, device_map={"": device})
    if GGUF_FILE in pinned:
        unpacked = {"quantization_config": GgufConfig(dequantize=True), "device_map": {"": device}}
        with redirect_stderr(StringIO()):  # a bar of progress, which no option turns off
            return network_in(auto, source, **pinned, **unpacked, dtype=dtype)
    weights = mapped_weights(weight_files(source, pinned), device)
    if not weights and "local_files_only" in pinned:
        raise FileNotFoundError("its weights are not in the local cache, and the model hub cannot be reached")
    if not weights:  # let `transformers` say what it looked for
        return network_in(auto, source, **pinned, dtype=dtype)
    config = config_in(source, **pinned)
    if (text := config.get_text_config()) is not config and auto is AutoModelForCausalLM:
        # For a checkpoint that also sees images, some families have a text model that reads its part of the weights.
        known = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
        config = text if getattr(known, "config_class", None) is type(text) else config
    with torch.device("meta"):
        kind = type(network_of_shape(auto, config))
    with one_at_a_time():
        loaded = network_with(kind, config, weights, device_map={"": device}, dtype=dtype)
    if find_file(source, GENERATION_CONFIG_NAME, pinned) is not None:
        # If it cannot be read, the config's generation settings stay; a run says so
        # (`experiment.from_model.unapplied`).
        with suppress(Exception):  # OSError, TypeError, ValueError, ...
            loaded.network.generation_config = generation_config_in(source, **pinned)
    return loaded


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Within, `transformers` reads one tensor after another: its threads would hold several of the largest at once."""
    before = os.environ.get(THREADS_OFF)
    os.environ[THREADS_OFF] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[THREADS_OFF]
        else:
            os.environ[THREADS_OFF] = before


class LoadedTokenizer(NamedTuple):
    """A tokenizer, and what the config of its model says of texts."""

    tokenizer: Any
    start: int
    is_encoder_decoder: bool
    family: str
    rows: int | None = None  # tokens that the model has embeddings of, if its config says


class KnownTokens(Protocol):
    """The vocabulary for which weights are loaded: a tokenizer and its size (`text.vocabulary.Vocabulary`)."""

    tokenizer: Any
    size: int
    is_encoder_decoder: bool


def read_tokenizer(model: ModelConfig, key: str) -> LoadedTokenizer:
    """The tokenizer of `model`, with the start token that its config names. `key` is 'target' or 'draft'.

    Raises:
        UserError: there is no tokenizer, or no start token.
        MachineError: the hub cannot be reached.
    """
    if model.architecture:
        shape = config_of(model.architecture, key)
        return LoadedTokenizer(WordNumbers(shape.vocab_size), 0, bool(shape.is_encoder_decoder), shape.model_type)
    config = _from_pretrained(config_in, model, key)
    tokenizer = _from_pretrained(_tokenizer_in, model, key)
    # Without its files a tokenizer may still be built, of only special tokens.
    if len(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)) < FEWEST_TOKENS:
        raise UserError(f"{key}: no tokenizer beside the weights of {name_of(model)}: put tokenizer.json there")
    tokenizer.model_max_length = int(1e9)  # lengths are the task's to set
    if config.is_encoder_decoder:
        # T5 configs of old leave it out; transformers' own default for T5 is the padding token.
        start = getattr(config, "decoder_start_token_id", None)
        start = config.pad_token_id if start is None else start
    else:
        start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if start is None:
        raise UserError(f"{key}: {name_of(model)} has no token to begin a text with (bos_token or eos_token)")
    rows = getattr(config.get_text_config(), "vocab_size", None)
    begins = "decoder_start_token_id" if config.is_encoder_decoder else "the token that begins a text"
    last = (rows or max(tokenizer.get_vocab().values()) + 1) - 1
    for name, token in ((begins, start), ("eos_token_id of its tokenizer", tokenizer.eos_token_id)):
        if token is not None and not (type(token) is int and 0 <= token <= last):
            raise UserError(f"{key}: {name_of(model)}: {name} is {token!r}, and the model has tokens 0 to {last}")
    return LoadedTokenizer(tokenizer, start, bool(config.is_encoder_decoder), config.model_type, rows)


def _tokenizer_in(source: str, **pinned: Any) -> Any:
    """The tokenizer in `source`; for a GGUF file a tokenizer.json beside it, otherwise the file's own."""
    if GGUF_FILE in pinned and (Path(source) / "tokenizer.json").is_file():
        pinned = {name: value for name, value in pinned.items() if name != GGUF_FILE}
    return tokenizer_in(source, **pinned)


def load_model(
    model: ModelConfig,
    key: str,
    vocabulary: KnownTokens,
    dtype: torch.dtype,
    device: torch.device,
    engine: str = "eager",
    with_states: bool = False,
    numerics: str = "fast",
    taps: tuple[int, ...] = (),
    states_of_prompt: bool = False,
    lookahead_embeddings: tuple[Path, ...] = (),
    kept_tokens: tuple[int, ...] | None = None,
    level_bits: int = 0,
) -> EagerModel:
    """The weights of `model` on `device`, run by `engine`.

    A model that is spread over several devices is placed by its loader, and runs eagerly: a captured step is for one
    device.

    Args:
        model: the checkpoint.
        key: 'target' or 'draft', for messages.
        vocabulary: its tokenizer.
        dtype: of its weights.
        device: where it runs.
        engine: see `engine.selection.with_engine`.
        with_states: its sessions return the input of its head.
        numerics: invariant | fast | auto, see `engine.selection.with_engine`.
        taps: its sessions also return the states after so many decoder layers.
        states_of_prompt: also the states of a decoder-only model's prompt.
        lookahead_embeddings: its sessions read the look-ahead embeddings in these folders.
        kept_tokens: it predicts only these tokens (`ShortHead`).
        level_bits: the weights of its linear maps are rounded to 8 or 4 bits; 0: they are not.

    Raises:
        UserError: the checkpoint or engine cannot be used.
        MachineError: memory or the hub does not suffice.
    """
    auto = AutoModelForSeq2SeqLM if vocabulary.is_encoder_decoder else AutoModelForCausalLM
    method = None if model.weights == "random" else quantised_method(shape_of(model, key))
    if method is not None:
        require_quantised(method, key, name_of(model), engine, device)
        if level_bits:
            raise UserError(f"{key}: {name_of(model)} is quantised already ({method}); use draft=early-exit or lookup")
        engine = "eager"
    spread = {name: value for name in ("device_map", "tp_plan") if (value := getattr(model, name)) is not None}
    if spread and engine not in ("auto", "eager"):
        raise UserError(f"engine={engine}: {key}.{next(iter(spread))} needs engine=eager")
    if model.weights == "random":
        try:
            network = random_network(shape_of(model, key), dtype, device)
        except Exception as error:
            if is_out_of_memory(error):
                raise _no_room(model, key, f"on {device}", error) from error
            raise
        if level_bits:
            round_weights(network, level_bits)
        if engine in PAGED:
            paged.move(network)
        # Ends of text would be random.
        return with_engine(engine, network, vocabulary.size, frozenset(), numerics, level_bits)
    if spread:
        network, unused = _from_pretrained(partial(network_in, auto, dtype=dtype, **spread), model, key)
        _require_placed(network, key, device)
        split = f"with {key}.tp_plan has caches in several processes, which are not compacted"
        traits = SessionTraits(no_trees=split if "tp_plan" in spread else None)
        ends = _end_tokens(network, vocabulary, key)
        placed = with_engine("eager", network, vocabulary.size, ends, numerics, traits=traits)
        placed.report.unused_tensors = unused
        return placed
    network, unused = load_network(model, key, auto, dtype, device)
    adapter = adapter_of(model, key)
    if adapter is not None:
        network = merged(network, adapter, key)
    as_found = None
    if is_gguf(model) and not level_bits:
        if dtype == torch.float32 and device.type == "cpu" and engine in ("auto", "native"):
            source, pinned = _source(model, key)
            file = find_file(source, str(pinned[GGUF_FILE]), {"revision": pinned.get("revision")})
            if file is not None and (as_found := settle(network, file)) is not None:
                level_bits = AS_FOUND
        else:
            as_found = f"its weights are unpacked to {str(dtype).removeprefix('torch.')}"
    if kept_tokens is not None:
        shorten_head(network, kept_tokens, key)
    if level_bits and level_bits != AS_FOUND:
        round_weights(network, level_bits)
    positions = read_lookahead_embeddings(network, lookahead_embeddings, "draft")
    if engine in PAGED:
        paged.move(network)
    width = return_states(network, key, taps) if with_states else 0
    traits = SessionTraits(width, taps, states_of_prompt, positions)
    ends = _end_tokens(network, vocabulary, key)
    made = with_engine(engine, network, vocabulary.size, ends, numerics, level_bits, traits)
    made.report.unused_tensors, made.report.weights = unused, as_found
    return made


def _require_placed(network: Any, key: str, device: torch.device) -> None:
    """Raise MachineError if a loader put layers on the CPU or the disk, which would slow down every step."""
    places = [str(place) for place in (getattr(network, "hf_device_map", None) or {}).values()]
    elsewhere = [place for place in places if place in ("cpu", "disk")]
    if elsewhere and device.type != "cpu":
        raise MachineError(
            f"{key}.device_map: {len(elsewhere)} of {len(places)} parts did not fit on the GPUs and are on "
            f"{' and '.join(sorted(set(elsewhere)))}: use more GPUs, a smaller model or a narrower dtype"
        )


def shape_of(model: ModelConfig, key: str) -> Any:
    """The `transformers` config of `model`, without its weights."""
    return config_of(model.architecture, key) if model.architecture else _from_pretrained(config_in, model, key)


def generation_settings(model: ModelConfig, key: str) -> dict[str, Any]:
    """The settings of the generation config beside the weights of `model`, as written; empty without one.

    Raises UserError if it is no JSON object.
    """
    if model.architecture or model.weights == "random":
        return {}
    source, pinned = _source(model, key)
    model = base_of(model, key)
    if model.path is None and model.hub is not None and not hub_is_reachable():
        pinned["local_files_only"] = True
    return read_object(source, GENERATION_CONFIG_NAME, pinned, key)


def layers_of(model: ModelConfig, key: str) -> int:
    """How many decoder layers `model` has, from only its config."""
    config = shape_of(model, key).get_text_config()
    layers: int = getattr(config, "num_decoder_layers", None) or config.num_hidden_layers
    return layers


def _end_tokens(network: Any, vocabulary: KnownTokens, key: str) -> frozenset[int]:
    """The end-of-sequence tokens, as `generate` reads them. Raises UserError if they are no tokens."""
    for ends in (network.generation_config.eos_token_id, vocabulary.tokenizer.eos_token_id):
        if ends is not None:
            found = ends if isinstance(ends, list | tuple) else [ends]
            if not all(type(one) is int for one in found):
                raise UserError(
                    f"{key}: eos_token_id of its generation config is {ends!r}: give a token or a list of them"
                )
            return frozenset(found)
    return frozenset()


@torch.no_grad()
def round_weights(network: nn.Module, bits: int) -> None:
    """Round the weights of all linear maps of `network` in place, each once, also a head tied to the embedding."""
    maps = {one.weight.data_ptr(): one for one in network.modules() if isinstance(one, (nn.Linear, Conv1D))}
    for module in maps.values():
        if isinstance(module, Conv1D):  # [K, N]
            module.weight.copy_(rounded(module.weight.T, bits).T)
        else:
            module.weight.copy_(rounded(module.weight, bits))
