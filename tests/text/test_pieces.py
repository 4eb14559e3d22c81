"""Tokens shown one by one add up to the text, whatever kind of decoder writes it."""

import pytest
from transformers import PreTrainedTokenizerFast

from specbench.config.model import ModelConfig
from specbench.report.marked_passes import lines
from specbench.text.tokenizer import load_tokenizer
from specbench.text.vocabulary import Vocabulary
from tests.support.made_passes import made_pass, made_trace
from tests.support.networks import tokenizer as words_alone
from tests.support.tokenized import KINDS, SHOWN, byte_level


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_add_up_to_the_text(kind: str) -> None:
    made = PreTrainedTokenizerFast(tokenizer_object=KINDS[kind](), eos_token="</s>")
    vocabulary = Vocabulary(made, 0, is_encoder_decoder=False)
    assert (kind == "unigram") or any(name.startswith("##") for name in vocabulary.tokens)
    ids = made(SHOWN, add_special_tokens=False).input_ids
    pieces = vocabulary.pieces(ids)
    shown = "".join(pieces[token] for token in ids)
    assert shown.strip() == vocabulary.text(ids).strip()
    assert " small" in shown and " old" in shown and "dogs" in shown


@pytest.mark.parametrize("kind", ["byte-level", "byte fallback"])
def test_a_character_of_several_tokens_is_not_lost_to_its_neighbours(kind: str) -> None:
    made = PreTrainedTokenizerFast(tokenizer_object=KINDS[kind](), eos_token="</s>")
    vocabulary = Vocabulary(made, 0, is_encoder_decoder=False)
    ids = made("an old 💡 tree", add_special_tokens=False).input_ids
    pieces = vocabulary.pieces(ids)
    shown = "".join(pieces[token] for token in ids).strip()
    assert shown.startswith("an old ") and shown.endswith(" tree")


def test_whole_words_and_the_models_that_ship() -> None:
    plain = Vocabulary(words_alone(with_end=False), 0, is_encoder_decoder=False)
    ids = plain.tokenizer("the old dog sees a cat").input_ids
    assert "".join(plain.pieces(ids)[token] for token in ids) == " the old dog sees a cat"
    for name in ("t5-mini", "gpt-mini"):
        shipped = load_tokenizer(ModelConfig(shipped=name), "target")
        ids = shipped.ids("The old man sees the sea, and runs.")
        shown = "".join(shipped.pieces(ids)[token] for token in ids)
        assert " old man sees the sea, and runs." in shown


def test_show_has_the_spaces() -> None:
    made = PreTrainedTokenizerFast(tokenizer_object=byte_level(), eos_token="</s>")
    vocabulary = Vocabulary(made, 0, is_encoder_decoder=False)
    ids = made("the small dogs", add_special_tokens=False).input_ids
    passes = [made_pass() for _ in ids]
    record = {"run_id": "r", "pieces": {str(token): text for token, text in vocabulary.pieces(ids).items()}}
    rows = lines(record, {"speculative": made_trace(tokens=ids, passes=passes)})
    assert rows[-1].before + "".join(piece.text for piece in rows[-1].pieces) == "the small dogs"
