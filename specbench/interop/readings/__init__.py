"""Acceptance numbers of other engines: `read` detects the format of a file and reads it.

A format is a `read` function of this room and its entry in `FORMATS`. Plain Python; torch is not needed.
"""

from collections import deque
from functools import partial
from pathlib import Path

from specbench.border import Unreadable
from specbench.errors import UserError
from specbench.files import json_text
from specbench.interop.readings import (
    benchmark_output,
    forced,
    ik_llama,
    llamacpp,
    pass_lists,
    prometheus,
    sglang,
    tensorrt,
    vllm,
)
from specbench.interop.readings.document import Document
from specbench.interop.readings.estimate import Best, Difference, Estimate, best_gamma, difference, estimate
from specbench.interop.readings.reading import PASSES, Format, Printed, Reading
from specbench.recorded import to_json
from specbench.records import store
from specbench.records.kept_form import ENDING

__all__ = [
    "FORMATS",
    "Best",
    "Difference",
    "Document",
    "Estimate",
    "Format",
    "Printed",
    "Reading",
    "best_gamma",
    "difference",
    "estimate",
    "read",
]

_VLLM = "https://docs.vllm.ai/en/stable"
_LLAMACPP = "https://github.com/ggml-org/llama.cpp/blob/master"
_SGLANG = "https://github.com/sgl-project/sglang/blob/main/python/sglang/srt"
_GOLDEN = "https://github.com/SemiAnalysisAI/InferenceX/blob/main/golden_al_distribution"
_TENSORRT = "https://github.com/NVIDIA/TensorRT-LLM/blob/main"
# The first that fits is taken, so that the narrower come first.
FORMATS = (
    Format(
        "specbench", "specbench", "a record of specbench run", "docs/run.md", "0.1",
        lambda file: file.holds_all("run_id", "speculative"), pass_lists.read,
    ),
    Format(
        "speculation-profile", "Model Optimizer", "speculation_profile.json",
        "https://github.com/NVIDIA/Model-Optimizer/pull/2247", "1.0", lambda file: file.holds_all(*forced.PROFILE),
        forced.read_profile,
    ),
    Format(
        "vllm-forced", "vLLM", "a speculative config with synthetic acceptance, JSON",
        "https://github.com/vllm-project/vllm/pull/40662", "main of 2026",
        lambda file: file.holds(forced.VLLM_RATES, forced.VLLM_LENGTH), forced.read_vllm,
    ),
    Format(
        "llamacpp-forced", "llama.cpp", "a command line with --spec-synth-len or --spec-synth-rates",
        "https://github.com/ggml-org/llama.cpp/pull/27711", "main of 2026",
        lambda file: not file.is_json and file.has("--spec-synth-"), forced.read_llamacpp,
    ),
    Format(
        "sglang-forced", "SGLang", "lines that set SGLANG_SIMULATE_ACC_LEN", f"{_GOLDEN}/README.md", "main of 2026",
        lambda file: not file.is_json and file.has("SGLANG_SIMULATE_ACC_LEN"), forced.read_sglang,
    ),
    Format(
        "tensorrt-forced", "TensorRT-LLM", "lines that set TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS",
        f"{_GOLDEN}/README.md", "main of 2026",
        lambda file: not file.is_json and file.has("TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"), forced.read_tensorrt,
    ),
    Format(
        "inferencex", "InferenceX", "golden acceptance lengths, YAML", f"{_GOLDEN}/README.md", "main of 2026",
        lambda file: not file.is_json and file.has(*(f"{mode}:" for mode in forced.MODES)), forced.read_golden,
    ),
    Format(
        "vllm-response", "vLLM", "responses with metrics.speculative_decoding, JSON or one per line",
        f"{_VLLM}/features/speculative_decoding/acceptance_metrics/", "0.32",
        lambda file: file.holds_all(vllm.VLLM, vllm.NAMES[PASSES]),
        partial(vllm.read_requests, vllm.VLLM, "start the server with --per-request-spec-decode-metrics summary"),
    ),
    Format(
        "aiperf", "AIPerf", "profile_export.jsonl of --export-level records",
        "https://docs.nvidia.com/aiperf/reference/per-request-speculative-decoding-acceptance", "0.13",
        lambda file: file.holds(vllm.AIPERF)
        or (file.holds("metadata") and file.holds("x_request_id", "benchmark_phase")),
        partial(
            vllm.read_requests, vllm.AIPERF, "the server must report acceptance by request, as vLLM does on request"
        ),
    ),
    Format(
        "sglang", "SGLang", "responses with meta_info, JSON or one per line",
        f"{_SGLANG}/managers/tokenizer_manager.py", "0.5", lambda file: file.holds("meta_info"), sglang.read,
    ),
    Format(
        "llamacpp-timings", "llama.cpp", "responses of llama-server or mlx-vlm with timings",
        f"{_LLAMACPP}/tools/server/README.md", "2026-06",
        lambda file: file.holds_all("timings", "predicted_n"), llamacpp.read_timings,
    ),
    Format(
        "tensorrt-llm", "TensorRT-LLM", "iteration statistics with specDecodingStats, JSON or one per line",
        "https://github.com/NVIDIA/TensorRT-LLM/blob/main/cpp/include/tensorrt_llm/executor/types.h", "1.0",
        lambda file: file.holds(*tensorrt.KEYS, "inflightBatchingStats"), tensorrt.read,
    ),
    Format(
        "tensorrt-llm-requests", "TensorRT-LLM", "requests of /perf_metrics, JSON or one per line",
        f"{_TENSORRT}/tensorrt_llm/serve/openai_server.py", "main of 2026",
        lambda file: file.holds_all("timing_metrics", "kv_cache_metrics"), tensorrt.read_requests,
    ),
    Format(
        "trtllm-bench", "TensorRT-LLM", "a report of trtllm-bench, --report_json or as printed",
        f"{_TENSORRT}/tensorrt_llm/bench/dataclasses/reporting.py", "2787769ca", benchmark_output.is_tensorrt,
        benchmark_output.read_tensorrt,
    ),
    Format(
        "vllm-bench", "vLLM", "results of vllm bench serve, JSON or one per line",
        "https://github.com/vllm-project/vllm/blob/main/vllm/benchmarks/serve.py", "main of 2026",
        lambda file: file.holds(benchmark_output.VLLM + benchmark_output.NAMES[PASSES])
        or (file.holds_all("mean_ttft_ms", "tokenizer_id") and not file.holds("accept_length")),
        benchmark_output.read_vllm_json,
    ),
    Format(
        "sglang-bench", "SGLang", "results of sglang.bench_serving, JSON or one per line",
        "https://github.com/sgl-project/sglang/blob/main/python/sglang/bench_serving.py", "0.5",
        lambda file: file.holds("accept_length") and file.holds("mean_ttft_ms", "mean_e2e_latency_ms"),
        benchmark_output.read_sglang_json,
    ),
    Format(
        "transformers", "transformers", "a line each pass, written as docs/acceptance.md shows",
        "https://huggingface.co/docs/transformers/assisted_decoding", "5.23",
        lambda file: file.holds_all(*pass_lists.FIELDS) and not file.holds("run_id"), pass_lists.read_lines,
    ),
    Format(
        "vllm-metrics", "vLLM", "/metrics (Prometheus text)", f"{_VLLM}/usage/metrics/", "0.11 to 0.32",
        lambda file: prometheus.is_page(file, "vllm:"),
        partial(prometheus.read_counters, "vllm:", "vLLM", "start the server with --speculative-config"), counters=True,
    ),
    Format(
        "llamacpp-metrics", "llama.cpp", "/metrics (Prometheus text)", f"{_LLAMACPP}/tools/server/README.md", "2026-06",
        lambda file: prometheus.is_page(file, "llamacpp:"),
        partial(
            prometheus.read_counters, "llamacpp:", "llama.cpp",
            "start the server with a draft (--model-draft, --spec-type)",
        ), counters=True,
    ),
    Format(
        "sglang-metrics", "SGLang", "/metrics (Prometheus text)",
        "https://docs.sglang.io/references/production_metrics.html", "0.5",
        lambda file: prometheus.is_page(file, "sglang:"), prometheus.read_sglang,
    ),
    Format(
        "vllm-log", "vLLM", "the server's log ('SpecDecoding metrics', also without these words)",
        "https://github.com/vllm-project/vllm/blob/main/vllm/v1/spec_decode/metrics.py", "0.11",
        lambda file: file.has(vllm.MARK) or (not file.is_json and file.has(vllm.POSITIONS)), vllm.read_log,
    ),
    Format(
        "vllm-v0-log", "vLLM V0", "the server's log ('Speculative metrics')",
        "https://github.com/vllm-project/vllm/pull/9565", "0.6",
        lambda file: not file.is_json and file.has(vllm.V0_MARK), vllm.read_v0_log,
    ),
    Format(
        "llamacpp-passes", "llama.cpp", "the verbose log ('accepted N/M draft tokens'), a line for each pass",
        "https://github.com/ggml-org/llama.cpp/pull/18211", "2026-06",
        lambda file: not file.is_json and file.has(llamacpp.PASS_MARK), llamacpp.read_passes,
    ),
    Format(
        "ik-llama", "ik_llama.cpp", "the table of llama-spec-bench",
        "https://github.com/ikawrakow/ik_llama.cpp/pull/2156", "2026-07", ik_llama.is_table, ik_llama.read_table,
    ),
    Format(
        "sglang-requests", "SGLang", "the server's log of requests (--log-requests)",
        "https://github.com/sgl-project/sglang/pull/11441", "0.5", sglang.is_request_log, sglang.read_request_log,
    ),
    Format(
        "llamacpp-log", "llama.cpp", "the log of llama-server or llama-speculative ('draft acceptance')",
        "https://github.com/ggml-org/llama.cpp/pull/24536", "2026-06", llamacpp.is_log, llamacpp.read_log,
    ),
    Format(
        "sglang-log", "SGLang", "the server's log ('Decode batch ... accept len')",
        f"{_SGLANG}/managers/scheduler_metrics_mixin.py", "0.5",
        lambda file: not file.is_json and file.has("Decode batch"), sglang.read_log,
    ),
    Format(
        "vllm-bench-text", "vLLM", "what vllm bench serve prints",
        "https://github.com/vllm-project/vllm/blob/main/vllm/benchmarks/serve.py", "main of 2026",
        lambda file: not file.is_json and file.has(benchmark_output.TITLE) and not file.has("\nAccept length:"),
        benchmark_output.read_vllm_text,
    ),
    Format(
        "sglang-bench-text", "SGLang", "what sglang.bench_serving prints",
        "https://github.com/sgl-project/sglang/blob/main/python/sglang/bench_serving.py", "0.5",
        lambda file: not file.is_json and file.has(benchmark_output.TITLE) and file.has("\nAccept length:"),
        benchmark_output.read_sglang_text,
    ),
)  # fmt: skip


def read(path: Path, since: Document | None = None, name: str | None = None) -> tuple[Format, Reading]:
    """The format of a file, and its reading.

    Args:
        path: the file; `-` is the standard input.
        since: an earlier reading of the same counters, which is subtracted.
        name: the format that the user gives; None: it is detected.

    Raises:
        UserError: no format fits, another than `name` fits, or the file is cut off.
    """
    document = _of_kept_record(path) if path.name.endswith(ENDING) else Document.read(path)
    fitting = [form for form in FORMATS if form.fits(document)]
    if name is not None:
        form = next(form for form in FORMATS if form.name == name)
        if form not in fitting:
            seems = f"{fitting[0].name}, {fitting[0].about}" if fitting else "none that is known"
            raise UserError(f"{path}: is not {name}, {form.about}; it looks like {seems}")
    elif not fitting:
        if document.is_json:
            deque(document.values, maxlen=0)  # a file that is cut off says so
        raise UserError(
            f"{path}: none of the files that specbench read knows: {', '.join(form.name for form in FORMATS)} "
            "(specbench read --help says what each is; for another, open an issue with ten lines of it)"
        )
    else:
        form = fitting[0]
    if since is not None and not (form.counters and form.fits(since)):
        pages = " or ".join(other.name for other in FORMATS if other.counters)
        raise UserError(
            f"--since {since.path}: can be subtracted from a page of the same counters ({pages}), and {path} is "
            f"{form.name}"
        )
    return form, form.read(document, since) if form.counters else form.read(document)


def _of_kept_record(path: Path) -> Document:
    """The record of a kept file, as a record of `run` is written. Raises UserError if it cannot be read."""
    try:
        return Document.of_text(path, json_text(to_json(store.read(path))))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    except Unreadable as error:
        raise UserError(f"{path}: {error}") from error
