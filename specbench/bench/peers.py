"""Other engines on the same weights, timed beside ours: `specbench bench peers=ctranslate2,llama.cpp`.

Each runs in a process of its own: two thread pools in one process wait for each other (measured: both 5 times as slow).
"""

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoTokenizer

from specbench.bench.llama_cpp import Llama, PromptLookup, convert
from specbench.bench.timing import Decoder
from specbench.engine.session import Prompt
from specbench.errors import UserError, first_line

MATCH = 2  # tokens that a prompt lookup has to find again


class Peer(NamedTuple):
    """Another engine at work: what it is, how it decodes a prompt, and the process to end."""

    what: str
    decode: Decoder
    process: ProcessPoolExecutor
    lookup: Callable[[int], Decoder] | None = None  # its own prompt lookup, by the number of drafted tokens


class Work(NamedTuple):
    """What a peer is to decode, greedily."""

    folder: str  # of the weights, or their name on the hub
    prompts: Sequence[Prompt]
    max_new_tokens: int
    ends: frozenset[int]
    dtype: torch.dtype
    device: torch.device

    @property
    def wanted(self) -> str:
        """The name of the dtype."""
        return str(self.dtype).removeprefix("torch.")


def ctranslate2(work: Work) -> Peer:
    """CTranslate2 at this work.

    It has bfloat16 only on processors with instructions for it, and else computes in float32.

    Raises:
        UserError: it cannot convert the weights.
    """
    folder, prompts, device = work.folder, work.prompts, work.device.type
    kind = "Translator" if prompts[0].source else "Generator"
    with tempfile.TemporaryDirectory() as made:
        converted = str(Path(made, "model"))
        try:
            with _process() as converting:
                converting.submit(_convert, folder, converted).result()
            process = _process()
            what = process.submit(_load, converted, kind, work.wanted, device, torch.get_num_threads()).result()
        except Exception as error:  # whatever its converters raise for weights that they do not know
            raise UserError(f"peers=ctranslate2: it cannot convert {folder}: {first_line(error)}") from error
    tokenizer = AutoTokenizer.from_pretrained(folder)
    read = [tokenizer.convert_ids_to_tokens(list(prompt.source or prompt.prefix)) for prompt in prompts]

    def decode(index: int) -> tuple[float, list[int]]:
        seconds, words = process.submit(_decode, read[index], work.max_new_tokens).result()
        return seconds, tokenizer.convert_tokens_to_ids(words)

    return Peer(what, decode, process)


def llama_cpp(work: Work) -> Peer:
    """llama.cpp at this work, on the processor.

    Raises:
        UserError: weights of an architecture that is not converted, or a target with an encoder.
    """
    if work.prompts[0].source or work.device.type != "cpu":
        raise UserError("peers=llama.cpp: only for decoder-only targets, on device=cpu")
    longest = max(len(prompt.prefix) for prompt in work.prompts) + work.max_new_tokens
    with tempfile.TemporaryDirectory() as made:
        file = str(Path(made, "model.gguf"))
        try:
            with _process() as converting:
                converting.submit(convert, work.folder, file, work.wanted).result()
            process = _process()
            what = process.submit(_load_llama, file, longest, torch.get_num_threads()).result()
        except Exception as error:  # whatever its package raises
            raise UserError(f"peers=llama.cpp: it cannot convert {work.folder}: {first_line(error)}") from error

    def decode(index: int) -> tuple[float, list[int]]:
        prompt = work.prompts[index].prefix
        return process.submit(_decode_llama, prompt, sorted(work.ends), work.max_new_tokens).result()

    def lookup(gamma: int) -> Decoder:
        def drafting(index: int) -> tuple[float, list[int]]:
            prompt = work.prompts[index].prefix
            return process.submit(_look_up_llama, prompt, sorted(work.ends), work.max_new_tokens, gamma).result()

        return drafting

    return Peer(f"{what} in {work.wanted}", decode, process, lookup)


PEERS = {"ctranslate2": ctranslate2, "llama.cpp": llama_cpp}


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


# In the other processes. One converts, for torch's threads, once they have run, are in the way of the engine's.

_model: Any = None
_lookup: Any = None


def _convert(folder: str, converted: str) -> None:
    converters: Any = import_module("ctranslate2.converters")
    converters.TransformersConverter(folder).convert(converted)


def _load(converted: str, kind: str, dtype: str, device: str, threads: int) -> str:
    """Load the weights, and say what runs."""
    global _model
    engine: Any = import_module("ctranslate2")
    computed = dtype if dtype in engine.get_supported_compute_types(device) else "float32"
    _model = getattr(engine, kind)(
        converted, device=device, compute_type=computed, intra_threads=threads, inter_threads=1
    )
    return f"CTranslate2 {engine.__version__} in {computed}"


def _load_llama(file: str, longest: int, threads: int) -> str:
    global _model, _lookup
    _model = Llama(file, longest, threads)
    _lookup = PromptLookup(file, longest, threads, MATCH)
    return str(_model.what)


def _decode_llama(prompt: Sequence[int], ends: Sequence[int], max_new_tokens: int) -> tuple[float, list[int]]:
    seconds, tokens = _model.decode(prompt, ends, max_new_tokens)
    return seconds, tokens


def _look_up_llama(
    prompt: Sequence[int], ends: Sequence[int], max_new_tokens: int, gamma: int
) -> tuple[float, list[int]]:
    seconds, tokens = _lookup.decode(prompt, ends, max_new_tokens, gamma)
    return seconds, tokens


def _decode(words: list[str], max_new_tokens: int) -> tuple[float, list[str]]:
    """Seconds and tokens of one completion, encoder and prefill included."""
    began = time.perf_counter()
    if hasattr(_model, "translate_batch"):
        (found,) = _model.translate_batch(
            [words], beam_size=1, max_decoding_length=max_new_tokens, return_end_token=True
        )  # fmt: skip
        return time.perf_counter() - began, list(found.hypotheses[0])
    (found,) = _model.generate_batch(
        [words], beam_size=1, max_length=max_new_tokens, include_prompt_in_result=False, return_end_token=True
    )
    return time.perf_counter() - began, list(found.sequences[0])
