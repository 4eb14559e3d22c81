"""Prompts of a decoder-only model begin once and do not end, whatever their text says and their tokenizer adds."""

import json
from pathlib import Path

import pytest
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from specbench.experiment.prompts import repeated_tokens
from specbench.interop.certify.outputs import read_outputs
from specbench.text.vocabulary import Vocabulary
from tests.support.tokenized import END, vocabulary_of

START = "<s>"


def ending(begins: bool = True) -> Vocabulary:
    """A tokenizer that ends every text, as with add_eos_token=True."""
    tokenizer = vocabulary_of("byte-level", start=START).tokenizer
    inner = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    names = [START, END] if begins else [END]
    inner.post_processor = processors.TemplateProcessing(
        single=f"{START if begins else ''} $A {END}".strip(),
        special_tokens=[(one, inner.token_to_id(one)) for one in names],
    )
    made = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END, bos_token=START)
    return Vocabulary(made, inner.token_to_id(START), is_encoder_decoder=False)


def test_a_prompt_that_spells_its_beginning_begins_once() -> None:
    vocabulary = vocabulary_of("byte-level", start=START)
    plain, spelled = (vocabulary.prompt(text, "", 100).prefix for text in ("the dog", f"{START}the dog"))
    assert spelled == plain and plain.count(vocabulary.tokenizer.bos_token_id) == 1
    assert vocabulary.begins_itself(f"{START}the dog") and not vocabulary.begins_itself("the dog")
    # Without a tokenizer that adds it, the text's own is the only one.
    bare = vocabulary_of("byte-level", special=(START,))
    assert not bare.begins_itself(f"{START}the dog")
    assert bare.prompt(f"{START}the dog", "", 100).prefix[0] == bare.tokens[START]


@pytest.mark.parametrize("begins", [True, False])
def test_an_end_that_the_tokenizer_adds_is_left_out_of_prompts(begins: bool) -> None:
    vocabulary = ending(begins)
    end = vocabulary.tokenizer.eos_token_id
    assert vocabulary.ends_prompts and end not in vocabulary.prompt("the dog", "", 100).prefix
    assert vocabulary.ids("the dog").count(end) == 1  # a whole text ends once
    assert vocabulary.prompt("the dog", " runs", 100).prefix.count(end) == 0
    assert not vocabulary_of("byte-level", start=START).ends_prompts
    # An end in the prompt's own text is the user's.
    assert vocabulary.prompt(f"the dog{END}", "", 100).prefix[-1] == end


def test_both_are_said() -> None:
    lines = list(repeated_tokens(ending(), "mine", twice=2, prompts=5))
    assert len(lines) == 2 and "2 of 5 prompts begin with <s>" in lines[0] and "read without" in lines[1]
    assert not list(repeated_tokens(vocabulary_of("byte-level", start=START), "mine", twice=0, prompts=5))


def test_certify_reads_a_rendered_template_as_the_server_did(tmp_path: Path) -> None:
    vocabulary = vocabulary_of("byte-level", start=START)
    file = tmp_path / "o.jsonl"
    file.write_text(json.dumps({"prompt": f"{START}the dog", "text": " runs"}) + "\n")
    found = read_outputs(file, vocabulary, frozenset(), None, None, "mine")
    assert found.begun_twice == 1
    assert found.rows[0].prompt == vocabulary.prompt("the dog", "", 100)
