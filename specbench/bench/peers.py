"""Other engines on the same weights, timed beside ours: `specbench bench peers=ctranslate2,llama.cpp`.

Each runs in a process of its own: two thread pools in one process wait for each other (measured: both 5 times as slow).
"""

import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from specbench.bench.gguf import convert
from specbench.bench.peer_process import (
    convert_for_ctranslate2,
    decode_ctranslate2,
    decode_llama,
    load_ctranslate2,
    load_llama,
    look_up_llama,
)
from specbench.bench.timing import Decoder
from specbench.config.model import GGUF
from specbench.engine.session import Prompt
from specbench.engine.weights.pretrained import tokenizer_in
from specbench.errors import UserError, first_line


class Peer(NamedTuple):
    """Another engine at work: what it is, how it decodes a prompt, and what to end.

    lookup, drafting: its own prompt lookup, and its speculative decoding with our draft's weights, by the number of
    drafted tokens; None: it has none here. One is asked for at a time, and ends the one before.
    first: seconds and token of reading a prompt up to the first token.
    """

    what: str
    decode: Decoder
    process: AbstractContextManager[Any]
    lookup: Callable[[int], Decoder] | None = None
    drafting: Callable[[int], Decoder] | None = None
    first: Callable[[Sequence[int]], tuple[float, list[int]]] | None = None


class Work(NamedTuple):
    """The work of a peer, decoded greedily."""

    folder: str  # of the weights, or a GGUF file, or their name on the hub
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

    It has bfloat16 only on processors with instructions for it, and otherwise computes in float32. Raises UserError if
    it cannot convert the weights.
    """
    folder, prompts, device = work.folder, work.prompts, work.device.type
    kind = "Translator" if prompts[0].source else "Generator"
    with tempfile.TemporaryDirectory() as made:
        converted = str(Path(made, "model"))
        try:
            with _process() as converting:
                converting.submit(convert_for_ctranslate2, folder, converted).result()
            tokenizer = tokenizer_in(folder)
            read = [tokenizer.convert_ids_to_tokens(list(prompt.source or prompt.prefix)) for prompt in prompts]
            process = _process()
            tried = read[0], work.max_new_tokens
            what = process.submit(
                load_ctranslate2, converted, kind, work.wanted, device, torch.get_num_threads(), *tried
            ).result()
        except Exception as error:  # whatever its converters raise for weights that they do not know
            raise UserError(f"peers=ctranslate2: it cannot convert {folder}: {first_line(error)}") from error

    def decode(index: int) -> tuple[float, list[int]]:
        seconds, words = process.submit(decode_ctranslate2, read[index], work.max_new_tokens).result()
        return seconds, tokenizer.convert_tokens_to_ids(words)

    return Peer(what, decode, process)


def llama_cpp(work: Work) -> Peer:
    """llama.cpp at this work, on the processor.

    Raises UserError for weights of an architecture that is not converted, or a target with an encoder.
    """
    if work.prompts[0].source or work.device.type != "cpu":
        raise UserError("peers=llama.cpp: only for decoder-only targets, on device=cpu")
    longest = max(len(prompt.prefix) for prompt in work.prompts) + work.max_new_tokens
    with tempfile.TemporaryDirectory() as made:
        holds = work.folder.endswith(GGUF)  # both engines then read one file
        file = work.folder if holds else str(Path(made, "model.gguf"))
        try:
            if not holds:
                with _process() as converting:
                    converting.submit(convert, work.folder, file, work.wanted).result()
            process = _process()
            what = process.submit(load_llama, file, longest, torch.get_num_threads()).result()
        except Exception as error:  # whatever its package raises
            verb = "load" if holds else "convert"
            raise UserError(f"peers=llama.cpp: it cannot {verb} {work.folder}: {first_line(error)}") from error

    def decode(index: int) -> tuple[float, list[int]]:
        prompt = work.prompts[index].prefix
        return process.submit(decode_llama, prompt, sorted(work.ends), work.max_new_tokens).result()

    def lookup(gamma: int) -> Decoder:
        def drafting(index: int) -> tuple[float, list[int]]:
            prompt = work.prompts[index].prefix
            return process.submit(look_up_llama, prompt, sorted(work.ends), work.max_new_tokens, gamma).result()

        return drafting

    return Peer(f"{what} on {Path(file).name}" if holds else f"{what} in {work.wanted}", decode, process, lookup)


PEERS = {"ctranslate2": ctranslate2, "llama.cpp": llama_cpp}


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
