"""Two small Llamas with random weights, of which the second drafts for the first: every engine reads such folders.

Their tokenizer is byte-level BPE without merges over the printable characters of ASCII: each token is a character, and
each text gives back its tokens, as servers without token ids need.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END = "<|endoftext|>"
BYTES = [10, *range(32, 127)]  # a new line, and what is printable
SIZE = len(BYTES) + 1  # tokens; the last is the end
SHARPER = 6.0  # the head's weights are that many times what is usual: neither flat nor all alike
AGREEING = 0.12  # of the usual spread of weights: noise that makes the draft another model


def llama_pair(folder: Path) -> tuple[Path, Path]:
    """The folders of a target and of its draft, saved in `folder`."""
    target, draft = folder / "target", folder / "draft"
    config = LlamaConfig(
        vocab_size=SIZE, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=512, tie_word_embeddings=False, bos_token_id=SIZE - 1,
        eos_token_id=SIZE - 1,
    )  # fmt: skip
    torch.manual_seed(1)
    network = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.dim() == 2:
                weight.normal_(0, 0.06)
            if name == "lm_head.weight":
                weight.mul_(SHARPER)
        # The end is rare: completions are to be long.
        network.lm_head.weight[SIZE - 1] = network.lm_head.weight[:-1].mean(0) - 0.01
    _save(network, target)
    with torch.no_grad():
        for weight in network.parameters():
            if weight.dim() == 2:
                weight.add_(torch.randn_like(weight) * weight.std() * AGREEING)
    _save(network, draft)
    return target, draft


def _save(network: LlamaForCausalLM, folder: Path) -> None:
    network.save_pretrained(folder)
    # As byte-level BPE writes bytes: those that are no printable character are moved up by 256.
    names = [chr(byte) if byte > 32 else chr(256 + byte) for byte in BYTES]
    made = Tokenizer(models.BPE({name: number for number, name in enumerate([*names, END])}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, bos_token=END).save_pretrained(folder)
