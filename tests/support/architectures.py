"""Networks of the architectures that people use today: random weights, small shapes, no checkpoint.

Each is built from its own `transformers` config, with the parts that set it apart: gated attention heads, windows,
capped scores, learned or rotary positions, experts. Logits are 4 wide for the toy vocabulary, 64 wide otherwise.

`row_of` decodes with one of them and returns its row of `conf/architectures.csv`, which docs and `specbench list
target` show. `python -m tests.support.architectures [MODEL_TYPE ...]` writes these rows (of all) anew; a test compares
them.
"""

import csv
import functools
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from specbench.algorithm.batching import together
from specbench.algorithm.decoding import DecodingSpec, speculate, speculative
from specbench.algorithm.draft import Draft
from specbench.algorithm.tree_draft import TreeDraft
from specbench.engine.batch import Batch
from specbench.engine.eager.model import EagerModel
from specbench.engine.selection import with_engine
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling
from specbench.theory.trees import TreeShape
from tests.support import recurrent
from tests.support.paths import ROOT

ROTARY = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
          "max_position_embeddings": 128, "initializer_range": 0.4}  # fmt: skip
SEQ2SEQ = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
           "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 128,
           "init_std": 0.1, "decoder_start_token_id": 0, "forced_eos_token_id": None}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 32}  # fmt: skip
CHOICE = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "initializer_range": 0.2}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
          "num_key_value_heads": 4}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {**ROTARY, "rope_parameters": LLAMA3},
    "qwen2": {**ROTARY},
    "qwen3": {**ROTARY, "head_dim": 16, "initializer_range": 0.1},
    "gemma2": {**ROTARY, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "gemma3_text": {**ROTARY, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "mistral": {**ROTARY, "sliding_window": 8},
    "gpt_neox": {key: value for key, value in ROTARY.items() if key != "num_key_value_heads"},
    "opt": {"hidden_size": 32, "ffn_dim": 64, "num_attention_heads": 2, "word_embed_proj_dim": 32,
            "max_position_embeddings": 128, "init_std": 0.4},
    "mt5": {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_heads": 2, "initializer_factor": 3.0,
            "decoder_start_token_id": 0},
    "bart": SEQ2SEQ,
    "marian": SEQ2SEQ,
    "t5": {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_heads": 2, "initializer_factor": 3.0,
           "decoder_start_token_id": 0},
    "gpt2": {"n_embd": 32, "n_head": 2, "n_positions": 128, "initializer_range": 0.4},
    "phi3": {**ROTARY, "initializer_range": 0.2},
    "olmo2": {**ROTARY},
    "granite": {**ROTARY, "initializer_range": 0.2},
    "smollm3": {**ROTARY, "initializer_range": 0.2},
    "glm4": {**ROTARY, "head_dim": 16, "initializer_range": 0.2},
    "qwen3_moe": {**ROTARY, **CHOICE, "num_experts": 8, "head_dim": 16},
    "gpt_oss": {**ROTARY, **CHOICE, "num_local_experts": 8, "head_dim": 16, "sliding_window": 8},
    "deepseek_v3": {**ROTARY, **CHOICE, **LATENT, "n_routed_experts": 32, "n_group": 4, "topk_group": 2,
                    "n_shared_experts": 1, "first_k_dense_replace": 1},
    "mixtral": {**ROTARY, **CHOICE, "num_local_experts": 8},
    "qwen2_moe": {**ROTARY, **CHOICE, "num_experts": 8, "shared_expert_intermediate_size": 16},
    "olmoe": {**ROTARY, **CHOICE, "num_experts": 8},
    "glm4_moe": {**ROTARY, **CHOICE, "head_dim": 16, "n_routed_experts": 32, "n_group": 1, "topk_group": 1,
                 "n_shared_experts": 1, "first_k_dense_replace": 1},
    **recurrent.SHAPES,
}  # fmt: skip
EXPERTS = ("qwen3_moe", "gpt_oss", "deepseek_v3", "mixtral", "qwen2_moe", "olmoe", "glm4_moe")
NAMES = {
    "llama": "Llama 2 and 3, Vicuna, TinyLlama", "qwen2": "Qwen 2 and 2.5", "qwen3": "Qwen 3", "gemma2": "Gemma 2",
    "gemma3_text": "Gemma 3 (text)", "mistral": "Mistral", "gpt_neox": "Pythia", "opt": "OPT", "mt5": "mT5",
    "bart": "BART", "marian": "Marian (OPUS-MT)", "t5": "T5, Flan-T5", "gpt2": "GPT-2", "phi3": "Phi 3 and 4",
    "olmo2": "OLMo 2", "granite": "Granite 3", "smollm3": "SmolLM 3", "glm4": "GLM 4", "qwen3_moe": "Qwen 3 MoE",
    "gpt_oss": "GPT-OSS", "deepseek_v3": "DeepSeek V3 and R1", "mixtral": "Mixtral", "qwen2_moe": "Qwen 1.5 and 2 MoE",
    "olmoe": "OLMoE", "glm4_moe": "GLM 4.5 and 4.6", **recurrent.NAMES,
}  # fmt: skip
LAYERS = {"mt5": ("num_layers", "num_decoder_layers"), "t5": ("num_layers", "num_decoder_layers"),
          "bart": ("decoder_layers",), "marian": ("decoder_layers",), "gpt2": ("n_layer",)}  # fmt: skip
SHARPNESS = {"mt5": 15.0, "t5": 15.0}  # the logits' standard deviation, where it is far from 1
KINDS = list(SHAPES)
ENCODER_DECODER = ("mt5", "bart", "marian", "t5")


def network(kind: str, seed: int, layers: int = 2, vocabulary: int = 64) -> Any:
    """A network of `kind` whose weights are large enough that greedy texts vary."""
    if kind in recurrent.SHAPES:
        return recurrent.network(kind, seed, vocabulary)
    torch.manual_seed(seed)
    counts = dict.fromkeys(LAYERS.get(kind, ("num_hidden_layers",)), layers)
    ends = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1}
    config = AutoConfig.for_model(kind, vocab_size=vocabulary, **SHAPES[kind], **counts, **ends)
    config.tie_word_embeddings = False  # with a tied head of random weights a text repeats its last token
    auto = AutoModelForSeq2SeqLM if kind in ENCODER_DECODER else AutoModelForCausalLM
    made = auto.from_config(config).eval()
    if vocabulary < 64:  # a toy's texts are to be tested as draws: none of them may have all of the mass
        made.get_output_embeddings().weight.data /= SHARPNESS.get(kind, 1.0)
    return made


# The table of architectures.

TABLE = ROOT / "conf" / "architectures.csv"
SIZE, ENDS, NEW = 40, frozenset({1}), 16
ROWS = 2  # of a batch


def row_of(kind: str) -> dict[str, str]:
    """A row of the table: what decodes `kind` on a CPU to the completions of `transformers`' own greedy search, fp32.

    `engine` is what engine=auto comes to and `engines` all that agree, each with chains; with that of auto `trees`,
    `batches` and `invariance` (numerics=invariant) are "yes" or the reason why not.
    """
    own = network(kind, seed=4)
    texts = greedy(kind, own)
    small = ModelDraft(EagerModel(network(kind, seed=2, layers=1), SIZE, ENDS), SIZE)
    spec = DecodingSpec.algorithm_1(Sampling(), NEW, 3)

    def agrees(target: EagerModel, draft: Draft) -> bool:
        return all(
            speculative(target, draft, prompt, spec, torch.Generator()).tokens == text
            for prompt, text in zip(prompts(kind), texts, strict=True)
        )

    def in_trees() -> bool:
        auto.require_trees()
        return agrees(auto, TreeDraft(small, TreeShape.of_widths([2, 2]), "fixed", ENDS))

    def in_rows() -> bool:
        batch, drafts = Batch.of(auto, ROWS), small.in_batch(ROWS)
        begun = (speculate(batch, drafts, prompt, spec, torch.Generator()) for prompt in prompts(kind))
        return [trace.tokens for trace in together(begun, ROWS, batch)] == texts

    auto = with_engine("auto", network(kind, seed=4), SIZE, ENDS)
    engines = []
    for engine in ("eager", "static", "native"):
        try:
            found = with_engine(engine, network(kind, seed=4), SIZE, ENDS)
        except UserError:
            continue
        if agrees(found, small):
            engines.append(engine)
    invariant = with_engine("auto", network(kind, seed=4), SIZE, ENDS, "invariant")
    return {
        "family": NAMES[kind],
        "model_type": kind,
        "engine": auto.engine if auto.report.fell_back is None else f"{auto.engine}: {auto.report.fell_back}",
        "engines": " ".join(engines),
        "trees": _answer(in_trees),
        "batches": _answer(in_rows),
        "invariance": "yes"
        if agrees(invariant, small) and invariant.invariant
        else f"no: {invariant.report.not_invariant}",
    }


def _answer(works: Callable[[], bool]) -> str:
    try:
        return "yes" if works() else "WRONG"
    except UserError as error:
        return "no: " + re.sub(r"^\w+(=\d+)?: \w+ |; use .*$", "", str(error))


def prompts(kind: str) -> list[Prompt]:
    sources = [(5, 9, 12, 30, 1), (17, 3, 22, 1)]
    return [Prompt(one, (0,)) if kind in ENCODER_DECODER else Prompt((), one[:-1]) for one in sources]


def greedy(kind: str, own: Any, new: int = NEW) -> list[list[int]]:
    """The completions of `transformers`' own greedy search."""
    found = []
    for prompt in prompts(kind):
        ids = prompt.source or prompt.prefix
        with torch.inference_mode():
            text = own.generate(
                torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), max_new_tokens=new,
                do_sample=False, suppress_tokens=list(range(SIZE, 64)), eos_token_id=1,
            )[0]  # fmt: skip
        found.append(text[1 if prompt.source else len(ids) :].tolist())
    return found


@functools.cache
def table() -> dict[str, dict[str, str]]:
    """The rows of the table by model type."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {row["model_type"]: row for row in csv.DictReader(file)}


def write_table(rows: dict[str, dict[str, str]]) -> None:
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, next(iter(rows.values())), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[kind] for kind in KINDS if kind in rows)


if __name__ == "__main__":
    asked = sys.argv[1:] or KINDS
    known = table() if TABLE.exists() else {}
    for one in asked:
        known[one] = row_of(one)
        print(*known[one].values(), sep=" | ", flush=True)
    write_table(known)
