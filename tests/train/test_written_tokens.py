"""Logits past the tokenizer's last token are padding: a training neither learns from them nor measures α over them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

from specbench.analysis.acceptance.agreement import agreements
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Prompt
from specbench.methods.model.draft import ModelDraft
from specbench.sampling import Sampling
from specbench.train.draft_alpha import alpha, target_outputs
from specbench.train.networks import build
from specbench.train.recipe_schema import ModelShape
from specbench.train.target_completions import engine_of
from specbench.train.target_texts import write_outputs, written_tokens
from tests.support import networks

SOURCES = [[5, 6, 7, 8 + index] for index in range(12)]


def favours_padding(network: Any, size: int) -> Any:
    """`network` with padding logits that are often the largest."""
    head = network.get_output_embeddings()
    with torch.no_grad():
        head.weight[size:] = 3 * head.weight[3 : 3 + len(head.weight) - size]
    return network.eval()


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return networks.tokenizer(with_end=False)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> Any:
    folder: Path = networks.save(tmp_path_factory.mktemp("target") / "llama", "llama", seed=1)
    return favours_padding(AutoModelForCausalLM.from_pretrained(folder), len(tokenizer))


@pytest.fixture(scope="module")
def draft(tokenizer: PreTrainedTokenizerFast) -> Any:
    torch.manual_seed(3)
    shape = ModelShape(family="gpt2", d_model=16, d_ff=16, heads=2, decoder_layers=1, positions=64)
    network = build(shape, tokenizer).eval()
    with torch.no_grad():
        network.lm_head.weight.mul_(20)
    return network


@pytest.mark.parametrize("sampled", [False, True])
def test_alpha_of_the_card_is_that_of_a_run(
    target: Any, draft: Any, tokenizer: PreTrainedTokenizerFast, sampled: bool
) -> None:
    size = written_tokens(tokenizer, target, draft)
    assert size == len(tokenizer) < target.config.vocab_size
    outputs = target_outputs(engine_of(target, size), SOURCES, sampled=sampled, max_new_tokens=8, seed=4)
    assert max(map(max, outputs)) < size
    found = alpha(target, draft, SOURCES, outputs, sampled=sampled, size=size)
    model, drafting = (EagerModel(network, size, frozenset({1})) for network in (target, draft))
    betas = []
    for source, output in zip(SOURCES, outputs, strict=True):
        (agreement,) = agreements(
            model, [ModelDraft(drafting, size)], Prompt((), tuple(source)), output, Sampling(temperature=float(sampled))
        )
        betas += agreement.beta
    assert found.tokens == len(betas)
    assert found.interval.value == pytest.approx(sum(betas) / len(betas), abs=1e-5)
    assert 0 < found.interval.value < 1


@pytest.mark.parametrize("sampled", [False, True])
def test_outputs_to_learn_from_have_ids_that_a_draft_can_read(
    tokenizer: PreTrainedTokenizerFast, sampled: bool, tmp_path: Path
) -> None:
    folder = networks.save(tmp_path / "t5", "t5-v1_1", seed=2)
    target = favours_padding(AutoModelForSeq2SeqLM.from_pretrained(folder), len(tokenizer))
    size = written_tokens(tokenizer, target)
    asked: dict[str, Any] = {"sampled": sampled, "batch_size": 4, "max_new_tokens": 12, "seed": 1, "progress": False}
    free = write_outputs(target, SOURCES, size=target.config.vocab_size, **asked)
    assert any(token >= size for output in free for token in output)  # the network alone writes them
    assert all(token < size for output in write_outputs(target, SOURCES, size=size, **asked) for token in output)
