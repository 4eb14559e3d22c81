"""A folder of weights as a GGUF file, which llama.cpp reads.

Its converter is a script of its repository, not of a package. What it does for plain Llamas and Qwens is done here:
names, the order of rows that its rotary angles expect, the sizes, and the vocabulary of a byte-level BPE tokenizer.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import load_file
from torch import Tensor

from specbench import border
from specbench.engine.weights.published_checkpoint import read_config

KINDS = {"llama": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3"}  # model_type to the package's name of an architecture
TURNED = ("llama",)  # whose rotary angles llama.cpp applies to neighbouring channels
# How llama.cpp calls the way in which a text is split before BPE: by the kinds of `pre_tokenizer` in tokenizer.json.
SPLITS = {("ByteLevel",): "gpt-2", ("Digits", "ByteLevel"): "smollm", ("Split", "ByteLevel"): "qwen2"}


def convert(folder: str, file: str, dtype: str, with_vocabulary: bool = False) -> None:
    """Write the weights in `folder` to a GGUF file in `dtype`, norms and biases in float32.

    Without a vocabulary the file reads and writes tokens only by number. Raises ValueError for an architecture, rotary
    angles, or a tokenizer that this function does not know.
    """
    gguf: Any = import_module("gguf")
    if not Path(folder).is_dir():
        folder = snapshot_download(folder)
    config = read_config(folder, {}, "peers=llama.cpp")
    kind, rope = config["model_type"], config.get("rope_parameters") or config.get("rope_scaling") or {}
    if kind not in KINDS:
        raise ValueError(f"model_type={kind}: must be of {', '.join(KINDS)}")
    if (scaled := rope.get("rope_type", rope.get("type", "default"))) != "default":
        raise ValueError(f"rope_type={scaled}: only plain rotary angles are converted")
    architecture, layers = getattr(gguf.MODEL_ARCH, KINDS[kind]), config["num_hidden_layers"]
    heads = config["num_attention_heads"]
    key_heads = config.get("num_key_value_heads") or heads
    channels = config.get("head_dim") or config["hidden_size"] // heads
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[architecture])
    if with_vocabulary:
        add_vocabulary(writer, Path(folder), config)
    else:
        writer.add_tokenizer_model("none")
    for name, number in {
        "vocab_size": config["vocab_size"], "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"], "block_count": layers,
        "feed_forward_length": config["intermediate_size"], "head_count": heads, "head_count_kv": key_heads,
        "key_length": channels, "value_length": channels, "rope_dimension_count": channels,
        "rope_freq_base": float(config.get("rope_theta") or rope.get("rope_theta", 10_000.0)),
        "layer_norm_rms_eps": config["rms_norm_eps"],
    }.items():  # fmt: skip
        getattr(writer, f"add_{name}")(number)
    names, stored = gguf.get_tensor_name_map(architecture, layers), gguf.GGMLQuantizationType.F32
    if dtype != "float32":
        stored = {"bfloat16": gguf.GGMLQuantizationType.BF16, "float16": gguf.GGMLQuantizationType.F16}[dtype]
    for name, weight in _weights(folder).items():
        if config.get("tie_word_embeddings") and name == "lm_head.weight":
            continue
        if kind in TURNED and name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = neighbouring(weight, heads if "q_proj" in name else key_heads)
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise ValueError(f"{name}: a weight that llama.cpp has no name for")
        if weight.dim() == 1 or dtype == "float32":
            writer.add_tensor(found, weight.float().numpy())
        else:
            raw = weight.to(getattr(torch, dtype)).contiguous().view(torch.uint8).numpy()
            writer.add_tensor(found, raw, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_vocabulary(writer: Any, folder: Path, config: dict[str, Any]) -> None:
    """Write the vocabulary of `tokenizer.json`, with the ends of `config`.

    Rows of the embedding beyond the tokenizer's tokens get names that no text has. Raises ValueError for another
    tokenizer than byte-level BPE.
    """
    gguf: Any = import_module("gguf")
    found: dict[str, Any] = border.parse(border.read_bytes(folder / "tokenizer.json"), dict[str, Any])
    split = found.get("pre_tokenizer") or {}
    kinds = tuple(one["type"] for one in split.get("pretokenizers", [split]) if "type" in one)
    if found["model"].get("type") != "BPE" or kinds not in SPLITS:
        raise ValueError(f"a tokenizer of the kind {found['model'].get('type')} after {kinds}: is not byte-level BPE")
    count = config["vocab_size"]
    tokens, types = [f"[unused {number}]" for number in range(count)], [int(gguf.TokenType.UNUSED)] * count
    for token, number in found["model"]["vocab"].items():
        tokens[number], types[number] = token, int(gguf.TokenType.NORMAL)
    for added in found.get("added_tokens", []):
        kind = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        tokens[added["id"]], types[added["id"]] = added["content"], int(kind)
    merges = found["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(SPLITS[kinds])
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    # A list without entries is refused; two zero bytes in a row are in no text.
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges] or ["Ā Ā"])
    for name in ("bos", "eos"):
        number = config.get(f"{name}_token_id")
        if isinstance(number, list):  # the first of several ends
            number = number[0]
        if number is not None:
            getattr(writer, f"add_{name}_token_id")(number)
    writer.add_add_bos_token(False)


def neighbouring(weight: Tensor, heads: int) -> Tensor:
    """The rows of a projection [H * D, K] in the order in which channels that turn together are neighbours."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _weights(folder: str) -> dict[str, Tensor]:
    """All weights of a folder of safetensors."""
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise ValueError("no .safetensors files")
    return {name: weight for file in files for name, weight in load_file(file).items()}
