"""The only file that loads configs, tokenizers and networks with `transformers`: no code of a checkpoint ever runs.

Without `trust_remote_code=False` a config that names code of its own asks on the terminal whether to run it, and 'y' on
standard input is an answer. No weight keeps the random value that it was made with, either: a network is refused if the
files lack one of its tensors, which `transformers` only logs.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from transformers import AutoConfig, AutoTokenizer, GenerationConfig, logging

LAYERS = ("num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")
NAMED = 4  # tensors that a message names

logging.set_verbosity_error()  # what is wrong with a checkpoint is one line of ours
logging.disable_progress_bar()


class DamagedCheckpoint(ValueError):
    """A config or weights that cannot be used; the message is one line, without the name of the checkpoint."""


class Loaded(NamedTuple):
    """A network, and the tensors of its files that it has no place for."""

    network: Any
    unused: tuple[str, ...]


def config_in(source: str, **pinned: Any) -> Any:
    """The config in a folder or a repository.

    Raises DamagedCheckpoint for one that `require_usable` refuses, and what `transformers` raises.
    """
    config = AutoConfig.from_pretrained(source, **pinned, trust_remote_code=False)
    require_usable(config)
    return config


def require_usable(config: Any) -> None:
    """Raise DamagedCheckpoint if `config` has no layers, or distances that T5's buckets cannot hold.

    A network without layers has weights, and computes nothing. T5's decoder has a bucket for each distance below half
    their number, and spreads the others over distances up to the largest: with none left, it reads beyond its table.
    """
    for part in (config, config.get_text_config()):
        for name in LAYERS:
            layers = getattr(part, name, None)
            if isinstance(layers, int) and layers < 1:
                raise DamagedCheckpoint(f"its config has {name}={layers}; a model has 1 layer or more")
        buckets, farthest = (
            getattr(part, f"relative_attention_{name}", None) for name in ("num_buckets", "max_distance")
        )
        if isinstance(buckets, int) and isinstance(farthest, int) and farthest <= buckets // 2:
            raise DamagedCheckpoint(
                f"its config has relative_attention_max_distance={farthest}; with {buckets} buckets it must be above "
                f"{buckets // 2}"
            )


def tokenizer_in(source: str, **pinned: Any) -> Any:
    """The tokenizer in a folder or a repository."""
    return AutoTokenizer.from_pretrained(source, **pinned, trust_remote_code=False)


def generation_config_in(source: str, **pinned: Any) -> Any:
    """The generation config in a folder or a repository."""
    return GenerationConfig.from_pretrained(source, **pinned)


def peft_config_in(folder: str) -> Any:
    """The config of an adapter, which is not to be trained."""
    from peft import PeftConfig

    config = PeftConfig.from_pretrained(folder)
    config.inference_mode = True
    return config


def network_of_shape(auto: Any, config: Any, **keywords: Any) -> Any:
    """A network of this config, with new weights."""
    return auto.from_config(config, trust_remote_code=False, **keywords)


def network_in(auto: Any, source: str, **keywords: Any) -> Loaded:
    """The network in a folder or a repository. Raises DamagedCheckpoint if its weights are not all there."""
    return _require_all_weights(auto.from_pretrained(source, **keywords, **CHECKED))


def network_with(kind: Any, config: Any, weights: Mapping[str, Any], **keywords: Any) -> Loaded:
    """The network of class `kind` and of this config with these tensors; raises as `network_in`."""
    return _require_all_weights(kind.from_pretrained(None, config=config, state_dict=weights, **keywords, **CHECKED))


def part_with(kind: Any, config: Any, weights: Mapping[str, Any], **keywords: Any) -> tuple[Any, dict[str, Any]]:
    """`network_with` for a network that others complete: nothing is required, and missing tensors are also returned."""
    told = {"config": config, "state_dict": weights, "output_loading_info": True}
    network, found = kind.from_pretrained(None, **told, **keywords, trust_remote_code=False)
    return network, found


# Other shapes are let through to be refused here, by name.
CHECKED = {"trust_remote_code": False, "output_loading_info": True, "ignore_mismatched_sizes": True}


def _require_all_weights(loaded: tuple[Any, Mapping[str, Any]]) -> Loaded:
    network, found = loaded
    if missing := sorted(found["missing_keys"]):
        raise DamagedCheckpoint(
            f"{len(missing)} of its weights are in none of its files, and would be random: {named(missing)}"
        )
    if other := sorted(found["mismatched_keys"]):
        name, stored, wanted = other[0]
        raise DamagedCheckpoint(
            f"{name} is {list(stored)} in its files and {list(wanted)} by its config" + (
                f", and {len(other) - 1} more differ" if other[1:] else "")
        )  # fmt: skip
    return Loaded(network, tuple(sorted(found["unexpected_keys"])))


def named(tensors: list[str] | tuple[str, ...]) -> str:
    """The first names of `tensors`, and how many more there are."""
    more = len(tensors) - NAMED
    return ", ".join(tensors[:NAMED]) + (f" and {more} more" if more > 0 else "")
