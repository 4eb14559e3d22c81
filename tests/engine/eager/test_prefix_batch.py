"""Reading many texts together: rows are those of reading each alone, whatever was read before."""

import pytest
import torch

from specbench.engine.eager.model import EagerModel, PrefixBatch, TokenSequence
from specbench.engine.session import Prompt
from tests.support.networks import network

SIZE = 40


def alone(model: EagerModel, prompt: Prompt, text: TokenSequence) -> torch.Tensor:
    """Log-probabilities after `text` without a cache."""
    ids = torch.tensor([text])
    with torch.inference_mode():
        if prompt.source:
            logits = model.network(input_ids=torch.tensor([prompt.source]), decoder_input_ids=ids).logits
        else:
            logits = model.network(input_ids=ids).logits
    row: torch.Tensor = logits[0, -1].log_softmax(-1)
    return row


@pytest.mark.parametrize("kind", ["t5", "t5-v1_1", "gpt2", "llama", "mistral"])
def test_rows_are_those_of_reading_each_text_alone(kind: str) -> None:
    model = EagerModel(network(kind, 4), SIZE, frozenset({1}))
    prompt = Prompt((5, 9, 12, 1), (0,)) if kind.startswith("t5") else Prompt((), (7, 5, 9, 12, 30, 8, 11, 3, 4))
    branches, p = PrefixBatch(model, prompt), prompt.prefix
    asked: list[list[TokenSequence]] = [
        [p],
        [p, (*p, 4), (*p, 6, 7, 8)],  # a text and its beginning; one that nobody asked about between two that are
        [(*p, 6, 7, 8, 9), (*p, 4, 5), (*p, 6)],  # back, and on from several rows
        [(*p, 6, 7, 8, 9, 10), (*p, 6, 7, 8, 9, 11)],  # two from one row
        [(*p, 6, 7, 8, 9, 11)],  # again what was read
        [(*p, 20, 21, 22, 23, 24, 25), (*p, 30, 31)],  # nothing in common but the prompt
        [p, p],
    ]
    for texts in asked:
        rows = branches.read(texts)
        assert set(rows) == set(texts)
        for text in texts:
            expected = alone(model, prompt, text)
            torch.testing.assert_close(rows[text][:SIZE], expected[:SIZE], atol=2e-4, rtol=1e-4)
            assert (rows[text][SIZE:] == -torch.inf).all()


def test_a_run_reads_only_what_is_new() -> None:
    model = EagerModel(network("gpt2", 4), SIZE, frozenset({1}))
    fed: list[tuple[int, ...]] = []
    model.network.register_forward_pre_hook(
        lambda _, __, keywords: fed.append(tuple(keywords["input_ids"].shape)), with_kwargs=True
    )
    prefix = (7, 5, 9, 12)
    branches = PrefixBatch(model, Prompt((), prefix))
    branches.read([prefix])
    branches.read([(*prefix, 4), (*prefix, 5), (*prefix, 5, 6)])
    branches.read([(*prefix, 5, 6, 7)])
    assert fed == [(1, 3), (1, 1), (2, 2), (1, 1)]
