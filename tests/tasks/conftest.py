"""A model with a chat template."""

from pathlib import Path

import pytest

from tests.support.networks import network, tokenizer

MARKS = ["<|user|>", "<|assistant|>", "<|end|>"]
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role not in ('user', 'assistant') %}{{ raise_exception('no role ' + m.role) }}{% endif %}"
    "<|{{ m.role }}|> {{ m.content }} <|end|> "
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama with random weights whose tokenizer has a chat template."""
    folder = tmp_path_factory.mktemp("models") / "chat"
    network("llama", seed=1).save_pretrained(folder)
    made = tokenizer(with_end=False)
    made.add_special_tokens({"additional_special_tokens": MARKS})
    made.chat_template = TEMPLATE
    made.save_pretrained(folder)
    return folder
