"""Other engines on the same weights, timed beside ours: `specbench bench peers=ctranslate2,llama.cpp`.

Each runs in a process of its own: two thread pools in one process wait for each other (measured: both 5 times as slow).
"""

import ctypes
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from specbench.bench.gguf import convert
from specbench.bench.timing import Decoder
from specbench.config.model import GGUF
from specbench.engine.session import Prompt
from specbench.engine.weights.pretrained import tokenizer_in
from specbench.errors import UserError, first_line


class Llama:
    """A GGUF file in llama.cpp, which reads and writes tokens by number."""

    def __init__(self, file: str, longest: int, threads: int) -> None:
        """`longest` is the maximum length of a prompt and its completion, in tokens."""
        self._engine: Any = import_module("llama_cpp")
        self._silent = self._engine.llama_log_callback(lambda *_: None)  # it logs each of its settings
        self._engine.llama_log_set(self._silent, None)
        self._engine.llama_backend_init()
        settings = self._engine.llama_model_default_params()
        settings.n_gpu_layers = 0
        self._model = self._engine.llama_model_load_from_file(file.encode(), settings)
        if not self._model:
            raise ValueError("llama.cpp cannot load what was converted")
        context = self._engine.llama_context_default_params()
        context.n_ctx = context.n_batch = longest
        context.n_threads = context.n_threads_batch = threads
        self._context = self._engine.llama_init_from_model(self._model, context)
        chosen = self._engine.llama_sampler_chain_default_params()
        self._greedy = self._engine.llama_sampler_chain_init(chosen)
        self._engine.llama_sampler_chain_add(self._greedy, self._engine.llama_sampler_init_greedy())
        self.what = f"llama.cpp of llama-cpp-python {version('llama_cpp_python')}"

    def decode(self, prompt: Sequence[int], ends: Sequence[int], max_new_tokens: int) -> tuple[float, list[int]]:
        """Seconds and tokens of one greedy completion, prefill included."""
        engine, written = self._engine, list[int]()
        began = time.perf_counter()
        engine.llama_memory_clear(engine.llama_get_memory(self._context), True)
        read = list(prompt)
        while True:
            tokens = (ctypes.c_int32 * len(read))(*read)
            if engine.llama_decode(self._context, engine.llama_batch_get_one(tokens, len(read))) != 0:
                raise RuntimeError("llama.cpp could not decode")
            token = engine.llama_sampler_sample(self._greedy, self._context, -1)
            written.append(token)
            if token in ends or len(written) == max_new_tokens:
                return time.perf_counter() - began, written
            read = [token]


class PromptLookup:
    """A GGUF file in llama.cpp, decoded speculatively as its Python package does: by prompt lookup, without a model.

    It drafts what followed the last `match` tokens, or fewer, where they first occur in prompt and completion.
    """

    def __init__(self, file: str, longest: int, threads: int, match: int) -> None:
        """`longest` is the maximum length of a prompt and its completion, in tokens."""
        engine: Any = import_module("llama_cpp")
        self._draft: Any = import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding(max_ngram_size=match)
        # llama.cpp rounds a context up to a multiple, up to which the package drafts, beyond the arrays that it made.
        slots = (-(-longest // MULTIPLE) + 1) * MULTIPLE
        self._engine: Any = engine.Llama(
            file, n_ctx=slots, n_batch=slots, n_ubatch=slots, n_threads=threads, n_threads_batch=threads,
            n_gpu_layers=0, logits_all=True, draft_model=self._draft, verbose=False,
        )  # fmt: skip

    def decode(
        self, prompt: Sequence[int], ends: Sequence[int], max_new_tokens: int, gamma: int
    ) -> tuple[float, list[int]]:
        """Seconds and tokens of one greedy completion with `gamma` drafted tokens per pass, prefill included."""
        self._draft.num_pred_tokens = gamma
        written = list[int]()
        began = time.perf_counter()
        self._engine.reset()  # else it finds the prompt of the last repetition in its cache
        for token in self._engine.generate(list(prompt), temp=0.0, repeat_penalty=1.0):
            written.append(int(token))
            if token in ends or len(written) == max_new_tokens:
                break
        return time.perf_counter() - began, written


MULTIPLE = 256  # slots of a context
MATCH = 2  # tokens that a prompt lookup has to find again


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
                converting.submit(_convert, folder, converted).result()
            tokenizer = tokenizer_in(folder)
            read = [tokenizer.convert_ids_to_tokens(list(prompt.source or prompt.prefix)) for prompt in prompts]
            process = _process()
            tried = read[0], work.max_new_tokens
            what = process.submit(_load, converted, kind, work.wanted, device, torch.get_num_threads(), *tried).result()
        except Exception as error:  # whatever its converters raise for weights that they do not know
            raise UserError(f"peers=ctranslate2: it cannot convert {folder}: {first_line(error)}") from error

    def decode(index: int) -> tuple[float, list[int]]:
        seconds, words = process.submit(_decode, read[index], work.max_new_tokens).result()
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
            what = process.submit(_load_llama, file, longest, torch.get_num_threads()).result()
        except Exception as error:  # whatever its package raises
            verb = "load" if holds else "convert"
            raise UserError(f"peers=llama.cpp: it cannot {verb} {work.folder}: {first_line(error)}") from error

    def decode(index: int) -> tuple[float, list[int]]:
        prompt = work.prompts[index].prefix
        return process.submit(_decode_llama, prompt, sorted(work.ends), work.max_new_tokens).result()

    def lookup(gamma: int) -> Decoder:
        def drafting(index: int) -> tuple[float, list[int]]:
            prompt = work.prompts[index].prefix
            return process.submit(_look_up_llama, prompt, sorted(work.ends), work.max_new_tokens, gamma).result()

        return drafting

    return Peer(f"{what} on {Path(file).name}" if holds else f"{what} in {work.wanted}", decode, process, lookup)


PEERS = {"ctranslate2": ctranslate2, "llama.cpp": llama_cpp}


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


# In the other processes. One converts, for torch's threads, once they have run, are in the way of the engine's.

_model: Any = None
_lookup: Any = None


def _convert(folder: str, converted: str) -> None:
    converters: Any = import_module("ctranslate2.converters")
    converters.TransformersConverter(folder).convert(converted)


def _load(
    converted: str, kind: str, dtype: str, device: str, threads: int, words: list[str], max_new_tokens: int
) -> str:
    """Load the weights, and say what runs: on a processor with the faster of one thread and of all `threads`.

    On two virtual cores its two threads took nine times as long as one.
    """
    global _model
    engine: Any = import_module("ctranslate2")
    computed = dtype if dtype in engine.get_supported_compute_types(device) else "float32"
    found = dict[int, tuple[float, Any]]()
    for count in {1, threads} if device == "cpu" else {threads}:
        _model = getattr(engine, kind)(
            converted, device=device, compute_type=computed, intra_threads=count, inter_threads=1
        )
        found[count] = min(_decode(words, max_new_tokens)[0] for _ in range(3)), _model
    fastest = min(found, key=lambda count: found[count][0])
    _model = found[fastest][1]
    return f"CTranslate2 {engine.__version__} in {computed} on {fastest} thread{'s' * (fastest > 1)}"


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
