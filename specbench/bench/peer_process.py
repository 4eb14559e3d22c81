"""Other engines' work in a process of their own: weights are converted or loaded, then prompts decoded.

One process converts, and another decodes: torch's threads, once they have run, are in the way of the engine's.
"""

import ctypes
import time
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any


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
_model: Any = None
_lookup: Any = None


def convert_for_ctranslate2(folder: str, converted: str) -> None:
    """Write the weights in `folder` as CTranslate2 reads them, to the folder `converted`."""
    converters: Any = import_module("ctranslate2.converters")
    converters.TransformersConverter(folder).convert(converted)


def load_ctranslate2(
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
        found[count] = min(decode_ctranslate2(words, max_new_tokens)[0] for _ in range(3)), _model
    fastest = min(found, key=lambda count: found[count][0])
    _model = found[fastest][1]
    return f"CTranslate2 {engine.__version__} in {computed} on {fastest} thread{'s' * (fastest > 1)}"


def load_llama(file: str, longest: int, threads: int) -> str:
    """Load a GGUF file twice, to decode and to look up, and say what runs."""
    global _model, _lookup
    _model = Llama(file, longest, threads)
    _lookup = PromptLookup(file, longest, threads, MATCH)
    return str(_model.what)


def decode_llama(prompt: Sequence[int], ends: Sequence[int], max_new_tokens: int) -> tuple[float, list[int]]:
    """Seconds and tokens of one completion, prefill included."""
    seconds, tokens = _model.decode(prompt, ends, max_new_tokens)
    return seconds, tokens


def look_up_llama(
    prompt: Sequence[int], ends: Sequence[int], max_new_tokens: int, gamma: int
) -> tuple[float, list[int]]:
    """Seconds and tokens of one completion with `gamma` tokens per pass by prompt lookup."""
    seconds, tokens = _lookup.decode(prompt, ends, max_new_tokens, gamma)
    return seconds, tokens


def decode_ctranslate2(words: list[str], max_new_tokens: int) -> tuple[float, list[str]]:
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
