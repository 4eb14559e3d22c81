"""Small GGUF files, made by the package `gguf`: a Llama of random weights with a byte-level tokenizer."""

from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.bench.gguf import neighbouring

TEXT = "the old dog runs and the small cats run over an old tree"


def tiny_llama(seed: int = 0, vocabulary: int = 300) -> LlamaForCausalLM:
    """A Llama whose channels fill the blocks of K-quants, with weights large enough for distinct logits."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False, bos_token_id=256,
        eos_token_id=257, initializer_range=0.06,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def tokens() -> tuple[list[str], list[int], list[str]]:
    """The 256 bytes, two special tokens and a few pairs: names, types and merges."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = list(bytes_to_unicode().values())
    merges, names = ["t h", "th e", "Ġ the", "o l", "ol d", "Ġ old"], [*letters, "<s>", "</s>"]
    names += [merge.replace(" ", "") for merge in merges]
    names += [f"[unused{number}]" for number in range(300 - len(names))]
    kinds = [3 if name in ("<s>", "</s>") else 5 if name.startswith("[") else 1 for name in names]
    return names, kinds, merges


def write(network: LlamaForCausalLM, file: Path, kind: str, head: str | None = None) -> Path:
    """`network` in a GGUF file, its linear maps and embedding of the type `kind`, its head of `head`."""
    config, stored = network.config, getattr(gguf.GGMLQuantizationType, kind)
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    names, kinds, merges = tokens()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    of = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in network.state_dict().items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            weight = neighbouring(weight, heads)
        array, found = weight.float().numpy(), of.get_name(name, try_suffixes=(".weight", ".bias"))
        wanted = getattr(gguf.GGMLQuantizationType, head) if head and name == "lm_head.weight" else stored
        if array.ndim == 1 or wanted == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(found, array)
        else:
            writer.add_tensor(found, quantised(array, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def quantised(array: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """`array` in blocks; of Q6_K, which the package only reads, with scales and levels chosen here."""
    if kind != gguf.GGMLQuantizationType.Q6_K:
        return gguf.quantize(array, kind)
    generator = np.random.default_rng(0)
    blocks = array.size // 256
    low, high = generator.integers(0, 256, (blocks, 128), np.uint8), generator.integers(0, 256, (blocks, 64), np.uint8)
    scales = generator.integers(8, 32, (blocks, 16)).astype(np.int8).view(np.uint8)
    size = np.full((blocks, 1), 1e-4, np.float16).view(np.uint8).reshape(blocks, 2)
    return np.concatenate([low, high, scales, size], -1).reshape(array.shape[0], -1)
