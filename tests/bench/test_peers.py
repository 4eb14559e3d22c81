"""`bench peers=`: what is handed to another engine and read from it, with a stand-in for its package, and with it."""

import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import T5ForConditionalGeneration

from specbench.algorithm.decoding import DecodingSpec, autoregressive
from specbench.bench import peers
from specbench.bench.bench_setup import Bench
from specbench.bench.benchmark import bench
from specbench.bench.gguf import neighbouring
from specbench.bench.peer_process import MATCH, PromptLookup
from specbench.bench.peers import PEERS, Peer, Work, ctranslate2, llama_cpp
from specbench.cli import main
from specbench.config.model import ModelConfig, weights_folder
from specbench.config.paths import shipped
from specbench.engine.session import Prompt
from specbench.errors import UserError
from specbench.methods.ngram.draft import UniformDraft
from specbench.sampling import Sampling

FOLDER, WORDS = str(shipped("models", "t5-mini")), 6
PROMPT = Prompt((40, 41, 42, 1), (0,))


def work(**changed: Any) -> Work:
    return Work(FOLDER, [PROMPT], WORDS, frozenset({1}), torch.float32, torch.device("cpu"))._replace(**changed)


STAND_IN = """
import time
from types import SimpleNamespace
__version__ = "9.9"


def get_supported_compute_types(device):
    return {"float32", "int8"}


class Translator:
    def __init__(self, folder, device, compute_type, intra_threads, inter_threads):
        assert folder.endswith("model") and (device, compute_type, inter_threads) == ("cpu", "float32", 1)
        self.threads = intra_threads

    def translate_batch(self, words, beam_size, max_decoding_length, return_end_token):
        assert (beam_size, return_end_token) == (1, True)
        time.sleep(0.01 * (self.threads - 1))
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


@pytest.mark.full
def test_a_peer_decodes_in_a_process_of_its_own_in_a_dtype_that_it_has(
    package: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And on as many threads as it is fastest with."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for words in (WORDS, 2):
        peer = ctranslate2(work(max_new_tokens=words, dtype=torch.bfloat16))
        with peer.process:
            seconds, tokens = peer.decode(0)
        assert tokens == list(PROMPT.source)[:words] and seconds >= 0
        assert peer.what == "CTranslate2 9.9 in float32 on 1 thread"


@pytest.mark.full
def test_weights_that_a_peer_cannot_convert_are_told(package: None) -> None:
    with pytest.raises(UserError, match="peers=ctranslate2: it cannot convert ./broken: no such architecture$"):
        ctranslate2(work(folder="./broken"))


@pytest.mark.skipif(find_spec("ctranslate2") is not None, reason="it is installed")
def test_a_peer_that_is_not_installed_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "peers=ctranslate2"]) == 2
    assert (
        "peers=ctranslate2: it is not installed; pip install 'specbench-toolkit[ctranslate2]'" in capfd.readouterr().err
    )


def test_a_peer_of_another_name_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "peers=tgi"]) == 2
    assert "peers=tgi: must be of ctranslate2, llama.cpp, vllm, openvino" in capfd.readouterr().err


def test_where_the_weights_of_a_target_are() -> None:
    assert weights_folder(ModelConfig(path="./x", shipped="t5-mini")) == "./x"
    assert weights_folder(ModelConfig(hub="a/b")) == "a/b"
    assert weights_folder(ModelConfig(shipped="t5-mini")) == FOLDER
    assert weights_folder(ModelConfig()) is None


@pytest.mark.skipif(find_spec("ctranslate2") is None, reason="CTranslate2 is not installed")
def test_ctranslate2_and_our_loop_decode_the_same_tokens() -> None:
    from specbench.engine.selection import with_engine

    network = T5ForConditionalGeneration.from_pretrained(FOLDER, dtype=torch.float32)
    target = with_engine("static", network, 8000, frozenset({1}))
    draft = UniformDraft(8000, torch.device("cpu"))
    setup = Bench(target, draft, [PROMPT], [2], 12, torch.float32, torch.device("cpu"), 1, parts="", folder=FOLDER,
                  peers=("ctranslate2",))  # fmt: skip
    (row,) = bench(setup, lambda _: None)
    assert row.part == "h" and "same tokens in 1 of 1 completions" in row.note


def test_channels_that_turn_together_become_neighbours() -> None:
    """Angles on the halves of a head, and on neighbouring channels of the reordered rows, give the same scores."""
    heads, channels = 3, 8
    angles = torch.linspace(0.1, 2.0, channels // 2)
    query, key = (torch.randn(heads * channels, 5, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    x = torch.randn(5, generator=torch.Generator().manual_seed(2))

    def turned(first: torch.Tensor, second: torch.Tensor, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = (place * angles).cos(), (place * angles).sin()
        return first * cos - second * sin, second * cos + first * sin

    def halves(weight: torch.Tensor, place: int) -> torch.Tensor:
        first, second = (weight @ x).view(heads, 2, -1).unbind(1)
        return torch.cat(turned(first, second, place), -1)

    def neighbours(weight: torch.Tensor, place: int) -> torch.Tensor:
        pairs = (neighbouring(weight, heads) @ x).view(heads, -1, 2)
        return torch.stack(turned(pairs[..., 0], pairs[..., 1], place), -1).flatten(1)

    for at, seen in ((0, 0), (5, 2)):
        scores = (halves(query, at) * halves(key, seen)).sum(-1)
        assert torch.allclose((neighbours(query, at) * neighbours(key, seen)).sum(-1), scores, atol=1e-4)


def test_llama_cpp_reads_decoders_on_a_processor() -> None:
    for refused in (work(), work(prompts=[Prompt((), (1, 2))], device=torch.device("cuda"))):
        with pytest.raises(UserError, match="peers=llama.cpp: only for decoder-only targets, on device=cpu"):
            llama_cpp(refused)


def test_llama_cpp_reads_the_targets_own_gguf_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is: it was handed to the converter of folders, which found no config."""
    asked: list[tuple[str, Any]] = []

    def submit(work: Any, *given: Any) -> Any:
        asked.append((work.__name__, given[0]))
        return SimpleNamespace(result=lambda: "llama.cpp 0")

    monkeypatch.setattr(peers, "_process", lambda: SimpleNamespace(submit=submit))
    peer = llama_cpp(work(folder="./models/x-Q4_0.gguf", prompts=[Prompt((), (1, 2))]))
    assert asked == [("load_llama", "./models/x-Q4_0.gguf")] and peer.what == "llama.cpp 0 on x-Q4_0.gguf"


class Package:
    """What of llama-cpp-python drafts by prompt lookup: `Llama` verifies, `LlamaPromptLookupDecoding` drafts."""

    class LlamaPromptLookupDecoding:
        num_pred_tokens = 10

        def __init__(self, max_ngram_size: int) -> None:
            assert max_ngram_size == MATCH

    class Llama:
        def __init__(self, file: str, **given: Any) -> None:
            assert file == "model.gguf" and given["draft_model"] is not None and given["logits_all"]
            assert given["n_ctx"] == given["n_batch"] == 512 and given["n_threads"] == given["n_threads_batch"] == 3
            self.draft, self.cached, self.closed = given["draft_model"], False, 0

        def reset(self) -> None:
            self.cached = False

        def generate(self, tokens: list[int], temp: float, repeat_penalty: float) -> Any:
            assert not self.cached and (temp, repeat_penalty) == (0.0, 1.0)
            self.cached = True
            yield from [tokens[-1], self.draft.num_pred_tokens, 5, 6, 7, 1, 9]


def test_prompt_lookup_of_llama_cpp_is_that_of_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy, with γ drafted tokens, up to an end or the limit, and each time from an empty cache."""
    monkeypatch.setitem(sys.modules, "llama_cpp", Package)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", Package)  # type: ignore[arg-type]
    engine = PromptLookup("model.gguf", 40, 3, MATCH)
    for gamma in (2, 4):
        seconds, tokens = engine.decode((8, 3), [1], 20, gamma)
        assert tokens == [3, gamma, 5, 6, 7, 1] and seconds >= 0
    assert engine.decode((8, 3), [1], 3, 7)[1] == [3, 7, 5]


@pytest.mark.full
def test_prompt_lookup_of_a_peer_is_timed_beside_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row for each γ; a peer without its own has the row of the target alone."""
    from specbench.engine.selection import with_engine
    from tests.support.networks import network

    target = with_engine("static", network("llama", 3), 40, frozenset({1}))
    prompts, asked = [Prompt((), (3, 4, 5, 3, 4)), Prompt((), (7, 8, 9))], list[int]()
    setup = Bench(target, UniformDraft(40, torch.device("cpu")), prompts, [2, 3], 6, torch.float32,
                  torch.device("cpu"), 1, parts="", folder="x", peers=("llama.cpp",))  # fmt: skip
    spec = DecodingSpec.algorithm_1(Sampling(), 6, 0)

    def alone(index: int) -> tuple[float, list[int]]:
        return 1.0, autoregressive(target, prompts[index], spec, torch.Generator()).tokens

    def lookup(gamma: int) -> Any:
        asked.append(gamma)
        return alone

    for theirs, expected in ((lookup, [None, 2, 3]), (None, [None])):
        made = Peer("llama.cpp 0", alone, ProcessPoolExecutor(1), theirs)
        monkeypatch.setitem(PEERS, "llama.cpp", lambda _, made=made: made)
        rows = bench(setup, lambda _: None)
        assert [row.what for row in rows] == [
            "autoregressive against llama.cpp" if gamma is None else f"prompt lookup against llama.cpp's, γ={gamma}"
            for gamma in expected
        ]
        for row in rows:
            assert row.part == "h" and row.theirs is not None and row.ratio is not None and row.ratio > 1
            assert row.note == "llama.cpp 0, ours in float32; same tokens in 2 of 2 completions"
    assert asked == [2, 3]


@pytest.mark.skipif(find_spec("gguf") is None, reason="gguf is not installed")
def test_weights_that_llama_cpp_is_not_given_are_told(tmp_path: Path) -> None:
    linear = {"model_type": "llama", "rope_scaling": {"type": "linear"}}
    unknown = ({"model_type": "gpt2"}, "model_type=gpt2: must be of llama, qwen2, qwen3")
    for config, said in (unknown, (linear, "rope_type=linear")):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match=f"peers=llama.cpp: it cannot convert .*: {said}"):
            llama_cpp(work(folder=str(tmp_path), prompts=[Prompt((), (1, 2))]))


@pytest.mark.skipif(find_spec("llama_cpp") is None or find_spec("gguf") is None, reason="llama.cpp is not installed")
@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3"])
def test_llama_cpp_and_our_loop_decode_the_same_tokens(kind: str, tmp_path: Path) -> None:
    import transformers

    from specbench.engine.selection import with_engine

    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 128}  # fmt: skip
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes | ({"head_dim": 32} if kind == "Qwen3" else {}))
    network = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    network.save_pretrained(tmp_path)
    target = with_engine("static", network, 128, frozenset({127}))
    prompts = [Prompt((), tuple(range(first, first + 9))) for first in (3, 40)]
    setup = Bench(target, UniformDraft(128, torch.device("cpu")), prompts, [2], 12, torch.float32, torch.device("cpu"),
                  1, parts="", folder=str(tmp_path), peers=("llama.cpp",))  # fmt: skip
    alone, lookup = bench(setup, lambda _: None)
    assert alone.what == "autoregressive against llama.cpp" and "same tokens in 2 of 2 completions" in alone.note
    assert lookup.what == "prompt lookup against llama.cpp's, γ=2" and "same tokens in 2 of 2" in lookup.note
