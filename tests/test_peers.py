"""`bench peers=`: what is handed to another engine and read from it, with a stand-in for its package, and with it."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import T5ForConditionalGeneration

from specbench.bench.bench import Bench, bench
from specbench.bench.peers import ctranslate2
from specbench.cli import main
from specbench.config.model import ModelConfig, weights_folder
from specbench.config.paths import shipped
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.methods.random.draft import UniformDraft

FOLDER, WORDS = str(shipped("models", "t5-mini")), 6
PROMPT = Prompt((40, 41, 42, 1), (0,))


STAND_IN = """
from types import SimpleNamespace
__version__ = "9.9"


def get_supported_compute_types(device):
    return {"float32", "int8"}


class Translator:
    def __init__(self, folder, device, compute_type, intra_threads, inter_threads):
        assert folder.endswith("model") and (device, compute_type, inter_threads) == ("cpu", "float32", 1)

    def translate_batch(self, words, beam_size, max_decoding_length, return_end_token):
        assert (beam_size, return_end_token) == (1, True)
        return [SimpleNamespace(hypotheses=[words[0][:max_decoding_length]])]
"""
CONVERTERS = """
import os


class TransformersConverter:
    def __init__(self, folder):
        if "broken" in folder:
            raise ValueError("no such architecture\\nmore")

    def convert(self, folder):
        os.mkdir(folder)
"""


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package of that name, found by the process of the peer: it answers with the words that it reads."""
    (tmp_path / "ctranslate2" / "converters").mkdir(parents=True)
    (tmp_path / "ctranslate2" / "__init__.py").write_text(STAND_IN)
    (tmp_path / "ctranslate2" / "converters" / "__init__.py").write_text(CONVERTERS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_peer_decodes_in_a_process_of_its_own_in_a_dtype_that_it_has(package: None) -> None:
    for words in (WORDS, 2):
        peer = ctranslate2(FOLDER, [PROMPT], words, torch.bfloat16, torch.device("cpu"))
        with peer.process:
            seconds, tokens = peer.decode(0)
        assert tokens == list(PROMPT.source)[:words] and seconds >= 0 and peer.what == "CTranslate2 9.9 in float32"


def test_weights_that_a_peer_cannot_convert_are_told(package: None) -> None:
    with pytest.raises(UserError, match="peers=ctranslate2: it cannot convert ./broken: no such architecture$"):
        ctranslate2("./broken", [PROMPT], WORDS, torch.float32, torch.device("cpu"))


@pytest.mark.skipif(find_spec("ctranslate2") is not None, reason="it is installed")
def test_a_peer_that_is_not_installed_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "peers=ctranslate2"]) == 2
    assert "peers=ctranslate2: it is not installed; pip install 'specbench-toolkit[peers]'" in capfd.readouterr().err


def test_a_peer_of_another_name_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "peers=llama.cpp"]) == 2
    assert "peers=llama.cpp: must be of ctranslate2" in capfd.readouterr().err


def test_where_the_weights_of_a_target_are() -> None:
    assert weights_folder(ModelConfig(path="./x", shipped="t5-mini")) == "./x"
    assert weights_folder(ModelConfig(hub="a/b")) == "a/b"
    assert weights_folder(ModelConfig(shipped="t5-mini")) == FOLDER
    assert weights_folder(ModelConfig()) is None


@pytest.mark.skipif(find_spec("ctranslate2") is None, reason="CTranslate2 is not installed")
def test_ctranslate2_and_our_loop_decode_the_same_tokens() -> None:
    from specbench.engine.choice import with_engine

    network = T5ForConditionalGeneration.from_pretrained(FOLDER, dtype=torch.float32)
    target = with_engine("static", network, 8000, frozenset({1}))
    draft = UniformDraft(8000, torch.device("cpu"))
    setup = Bench(target, draft, [PROMPT], [2], 12, torch.float32, torch.device("cpu"), 1, parts="", folder=FOLDER,
                  peers=("ctranslate2",))  # fmt: skip
    (row,) = bench(setup, lambda _: None)
    assert row.part == "h" and "same tokens in 1 of 1 completions" in row.note
