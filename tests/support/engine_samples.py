"""Files as engines write them, made by hand from one set of passes: what differs between them is the counting alone.

Each engine's rules are those of docs/acceptance.md; none of the text is an engine's own output.
"""

import json
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

GAMMA = 4


class Pass(NamedTuple):
    """`accepted` drafted tokens, of which the last `after_end` come after the end of the text."""

    accepted: int
    after_end: int = 0

    @property
    def written(self) -> int:
        """Tokens of the text: without those after its end, and with the target's own where it has not ended before."""
        return self.accepted - self.after_end + (0 if self.after_end else 1)


Request = list[Pass]
# The worked example: a long text, and two short ones that end in the middle of a pass.
REQUESTS: list[Request] = [
    [Pass(n) for n in (4, 4, 2, 4, 3, 4, 0, 4, 4, 1, 4, 4, 4, 3, 4, 2, 4, 4)],
    [Pass(1), Pass(0), Pass(3, 2)],
    [Pass(0), Pass(2), Pass(4, 3)],
]


def cut(one: Pass) -> int:
    """Accepted tokens where the end of the text cuts a pass, as SGLang and transformers count them: tokens written,
    less one for the target's."""
    return one.written - 1


def counted(requests: list[Request], of: Callable[[Pass], int]) -> list[list[int]]:
    return [[of(one) for one in request] for request in requests]


def as_it_went_on(one: Pass) -> int:
    return one.accepted


def dense(accepted: list[int]) -> list[int]:
    found = Counter(accepted)
    return [found[n] for n in range(GAMMA + 1)]


def by_position(row: list[int]) -> str:
    """The share of all passes that accepted the first, second, ... token."""
    return ", ".join(f"{sum(n > place for n in row) / len(row):.3f}" for place in range(GAMMA))


def vllm_metrics(
    requests: list[Request] = REQUESTS, prefix: str = "vllm:", labels: str = 'engine="0",model_name="m"'
) -> str:
    accepted = [n for request in counted(requests, as_it_went_on) for n in request]
    lines = [
        f"# HELP {prefix}spec_decode_num_drafts_total Drafts.",
        f"# TYPE {prefix}spec_decode_num_drafts_total counter",
    ]
    braces = f"{{{labels}}}" if labels else ""
    lines.append(f"{prefix}num_requests_running{braces} 0.0")
    lines.append(f"{prefix}spec_decode_num_drafts_total{braces} {float(len(accepted))}")
    lines.append(f"{prefix}spec_decode_num_drafts_created{braces} 1.7636e+09")
    lines.append(f"{prefix}spec_decode_num_draft_tokens_total{braces} {float(GAMMA * len(accepted))}")
    lines.append(f"{prefix}spec_decode_num_accepted_tokens_total{braces} {float(sum(accepted))}")
    for place in range(GAMMA):
        position = ",".join(filter(None, (labels, f'position="{place}"')))
        kept = sum(n > place for n in accepted)
        lines.append(f"{prefix}spec_decode_num_accepted_tokens_per_pos_total{{{position}}} {float(kept)}")
    return "\n".join(lines) + "\n"


def vllm_log(requests: list[Request] = REQUESTS) -> str:
    """A line for each request, as if each took one interval."""
    return "INFO 11-22 02:00:00 [loggers.py:127] Engine 000: Avg generation throughput: 80.0 tokens/s\n" + "\n".join(
        f"INFO 11-22 02:00:{10 * number:02} [metrics.py:96] SpecDecoding metrics: "
        f"Mean acceptance length: {1 + sum(row) / len(row):.2f}, Accepted throughput: 1.00 tokens/s, "
        f"Drafted throughput: 2.00 tokens/s, Accepted: {sum(row)} tokens, Drafted: {GAMMA * len(row)} tokens, "
        f"Per-position acceptance rate: {by_position(row)}, "
        f"Avg Draft acceptance rate: {100 * sum(row) / GAMMA / len(row):.1f}%"
        for number, row in enumerate(counted(requests, as_it_went_on))
    )


def statistics(row: list[int], sparse: bool) -> dict[str, object]:
    """What vLLM says of a request, and with other histograms AIPerf."""
    found: dict[str, object] = {
        "mean_acceptance_length": 1 + sum(row) / len(row),
        "draft_acceptance_rate": sum(row) / GAMMA / len(row),
        "acceptance_histogram": {str(n): count for n, count in Counter(row).items()} if sparse else dense(row),
        "num_spec_steps": len(row),
        "num_accepted_draft_tokens": sum(row),
        "num_draft_tokens": GAMMA * len(row),
        "num_spec_tokens": GAMMA,
    }
    return (
        {"engine": "vllm", **found}
        if sparse
        else {**found, "acceptance_histogram_by_draft_length": {str(GAMMA): dense(row)}}
    )


def vllm_responses(requests: list[Request] = REQUESTS) -> str:
    rows = counted(requests, as_it_went_on)
    return "\n".join(
        json.dumps(
            {"choices": [{"text": "…"}], "usage": {}, "metrics": {"speculative_decoding": statistics(row, False)}}
        )
        for row in rows
    )


def aiperf(requests: list[Request] = REQUESTS) -> str:
    rows = counted(requests, as_it_went_on)
    return "\n".join(
        json.dumps({
            "metadata": {"session_num": number, "benchmark_phase": "profiling"}, "metrics": {},
            "spec_decode_acceptance": statistics(row, True),
        })
        for number, row in enumerate(rows)
    )  # fmt: skip


def sglang(requests: list[Request] = REQUESTS, histogram: bool = True) -> str:
    """A list of responses of `/generate`."""
    found = []
    for request, row in zip(requests, counted(requests, cut), strict=True):
        tokens = 1 + sum(one.written for one in request)  # the prompt's own pass writes the first
        meta = {
            "completion_tokens": tokens, "spec_verify_ct": len(row), "spec_accept_length": tokens / len(row),
            "spec_accept_rate": sum(row) / GAMMA / len(row), "spec_accepted_drafts": sum(row),
            "spec_proposed_drafts": GAMMA * len(row), "spec_accept_histogram": dense(row),
        }  # fmt: skip
        if not histogram:
            del meta["spec_accept_histogram"]
        found.append({"text": "…", "meta_info": meta})
    return json.dumps(found)


def llamacpp_log(requests: list[Request] = REQUESTS) -> str:
    rows = counted(requests, as_it_went_on)
    return "".join(
        f"0.0{number}.895.980 I slot print_timing: id  0 | task {number} | eval time =    229.72 ms /   25 tokens\n"
        f"0.0{number}.896.015 I slot print_timing: id  0 | task {number} | draft acceptance = "
        f"{sum(row) / GAMMA / len(row):.5f} (  {sum(row)} accepted /   {GAMMA * len(row)} generated), "
        f"mean acceptance length = {1 + sum(row) / len(row):5.2f}, acceptance rate per position = "
        f"({by_position(row)})\n"
        for number, row in enumerate(rows)
    )


def llamacpp_timings(requests: list[Request] = REQUESTS) -> str:
    return "\n".join(
        json.dumps(
            {"content": "…", "timings": {"predicted_n": 9, "draft_n": GAMMA * len(row), "draft_n_accepted": sum(row)}}
        )
        for row in counted(requests, as_it_went_on)
    )


def llamacpp_passes(requests: list[Request] = REQUESTS) -> str:
    return "".join(
        f"slot update_slots: id  3 | task {number} | accepted {n}/{GAMMA} draft tokens, new n_tokens = 66\n"
        for number, row in enumerate(counted(requests, as_it_went_on))
        for n in row
    )


def ik_llama(requests: list[Request] = REQUESTS) -> str:
    head = "| task | run | stage | tokens | stop | time(s) | tok/s | rounds | accepted | rate | a.len | pos accept |\n"
    rows = "".join(
        f"| t{number} | 1 | mtp | 9 | eog | 1.0 | 9.0 | {len(row)} | {sum(row)}/{GAMMA * len(row)} | "
        f"{sum(row) / GAMMA / len(row):.2%} | {1 + sum(row) / len(row):.2f} | "
        f"{' '.join(f'{sum(n > place for n in row) / len(row):.1%}' for place in range(GAMMA))} |\n"
        for number, row in enumerate(counted(requests, as_it_went_on))
    )
    return f"{head}|{'---|' * 12}\n{rows}"


def sglang_requests(requests: list[Request] = REQUESTS) -> str:
    """What --log-requests prints: Python's text of objects and of the response."""
    return "".join(
        f"[2026-10-02 23:42:16] Finish: obj=GenerateReqInput(rid='0', stream=True), out={{'text': '…', "
        f"'meta_info': {meta['meta_info']!r}}}\n"
        for meta in json.loads(sglang(requests))
    )


def vllm_v0_log() -> str:
    return (
        "INFO 10-16 19:05:47 metrics.py:367] Speculative metrics: Draft acceptance rate: 0.500, "
        "System efficiency: 0.400, Number of speculative tokens: 3, Number of accepted tokens: 99, "
        "Number of draft tokens: 60, Number of emitted tokens: 32.\n"
    )


def tensorrt(requests: list[Request] = REQUESTS, together: bool = False) -> str:
    """Iterations of one request at a time, or of all that still run."""
    rows = counted(requests, as_it_went_on)
    batches = [[n] for row in rows for n in row]
    if together:
        batches = [[row[place] for row in rows if place < len(row)] for place in range(max(map(len, rows)))]
    return "\n".join(
        json.dumps({
            "iter": number, "iterLatencyMS": 5.0, "inflightBatchingStats": {"numGenRequests": len(batch)},
            "specDecodingStats": {
                "numDraftTokens": GAMMA * len(batch), "numAcceptedTokens": sum(batch),
                "numRequestsWithDraftTokens": len(batch), "acceptanceLength": 1 + sum(batch) / len(batch),
            },
        })
        for number, batch in enumerate(batches)
    )  # fmt: skip


def transformers(requests: list[Request] = REQUESTS) -> str:
    return "\n".join(
        json.dumps({"request": number, "drafted": GAMMA, "accepted": n})
        for number, row in enumerate(counted(requests, cut))
        for n in row
    )


def record(requests: list[Request] = REQUESTS) -> str:
    """What of a record of `specbench run` is read."""

    def one(a_pass: Pass) -> dict[str, int]:
        return {"drafted": GAMMA, "accepted": a_pass.accepted - a_pass.after_end, "emitted": a_pass.written}

    prompts = [{"speculative": {"passes": [one(a_pass) for a_pass in request]}} for request in requests]
    return json.dumps({"run_id": "r", "prompts": prompts, "summary": {"alpha": 0.8, "passes": sum(map(len, requests))}})


def vllm_bench(requests: list[Request] = REQUESTS) -> str:
    """What `vllm bench serve --save-result` keeps, of the fields that matter here."""
    row = [n for request in counted(requests, as_it_went_on) for n in request]
    return json.dumps({
        "backend": "openai", "tokenizer_id": "m", "completed": len(requests), "mean_ttft_ms": 9.5,
        "spec_decode_acceptance_rate": 100 * sum(row) / GAMMA / len(row),
        "spec_decode_acceptance_length": 1 + sum(row) / len(row), "spec_decode_num_drafts": len(row),
        "spec_decode_draft_tokens": GAMMA * len(row), "spec_decode_accepted_tokens": sum(row),
        "spec_decode_per_position_acceptance_rates": [
            sum(n > place for n in row) / len(row) for place in range(GAMMA)
        ],
    })  # fmt: skip


def vllm_bench_text(requests: list[Request] = REQUESTS) -> str:
    row = [n for request in counted(requests, as_it_went_on) for n in request]
    lines = [
        f"{' Serving Benchmark Result ':=^50}",
        f"{'Successful requests:':<40} {len(requests):<10}",
        f"{'Mean TTFT (ms):':<40} {9.5:<10.2f}",
        f"{'Speculative Decoding':-^50}",
        f"{'Acceptance rate (%):':<40} {100 * sum(row) / GAMMA / len(row):<10.2f}",
        f"{'Acceptance length:':<40} {1 + sum(row) / len(row):<10.2f}",
        f"{'Drafts:':<40} {len(row):<10}",
        f"{'Draft tokens:':<40} {GAMMA * len(row):<10}",
        f"{'Accepted tokens:':<40} {sum(row):<10}",
        "Per-position acceptance (%):",
    ]
    for place in range(GAMMA):
        lines.append(f"{f'  Position {place}:':<40} {100 * sum(n > place for n in row) / len(row):<10.2f}")
    return "\n".join([*lines, "=" * 50]) + "\n"


def _of_trtllm_bench(requests: list[Request]) -> tuple[dict[str, float], float]:
    """Means over requests: draft tokens, accepted tokens, their ratio, tokens per iteration; and tokens written."""
    rows = [(len(request), sum(one.written for one in request)) for request in requests]
    accepted = [written - passes for passes, written in rows]
    means = {
        "num_draft_tokens": sum(GAMMA * passes for passes, _ in rows) / len(rows),
        "num_accepted_draft_tokens": sum(accepted) / len(rows),
        "draft_acceptance_rate": sum(n / GAMMA / row[0] for n, row in zip(accepted, rows, strict=True)) / len(rows),
        "acceptance_length": sum(written / passes for passes, written in rows) / len(rows),
    }
    return means, sum(written for _, written in rows) / len(rows)


def trtllm_bench(requests: list[Request] = REQUESTS) -> str:
    means, written = _of_trtllm_bench(requests)
    return json.dumps({
        "engine": {"backend": "Pytorch"}, "world_info": {"tp_size": 1},
        "request_info": {"num_requests": len(requests), "avg_output_length": written},
        "decoding_stats": {
            "mode": "Eagle", **{f"{name}_percentiles": {"average": mean, "p50": 1.0} for name, mean in means.items()}
        },
    }, indent=2)  # fmt: skip


def trtllm_bench_text(requests: list[Request] = REQUESTS) -> str:
    means, written = _of_trtllm_bench(requests)
    lines = [
        "= REQUEST DETAILS ",
        f"Number of requests:             {len(requests)}",
        f"Average Output Length (tokens): {written:.4f}",
        "= DECODING STATISTICS (Eagle)",
    ]
    for short, mean in zip(("DT", "ADT", "DAR", "AL"), means.values(), strict=True):
        lines += [f"[{short}] MINIMUM: 0.10", f"[{short}] AVERAGE: {mean:.2f}"]
    return "\n".join(lines) + "\n"


def trtllm_requests(requests: list[Request] = REQUESTS, phases: bool = False) -> str:
    """Requests of `/perf_metrics`, or lines of the file that newer servers write."""
    found = []
    for place, row in enumerate(counted(requests, as_it_went_on)):
        drafted = GAMMA * len(row)
        stats = {
            "first_iter": 1, "timing_metrics": {"arrival_time": 1.0}, "kv_cache_metrics": {"num_reused_blocks": 0},
            "speculative_decoding": {
                "acceptance_rate": sum(row) / drafted, "total_accepted_draft_tokens": sum(row),
                "total_draft_tokens": drafted,
            },
        }  # fmt: skip
        name = str(place)
        found.append(
            {"schema_version": 1, "request_id": name, "phases": {"server": stats}}
            if phases
            else {"request_id": name, "perf_metrics": stats}
        )
    return "\n".join(map(json.dumps, found)) if phases else json.dumps(found)


FILES: dict[str, str] = {
    "specbench": record(),
    "vllm-response": vllm_responses(),
    "aiperf": aiperf(),
    "sglang": sglang(),
    "llamacpp-timings": llamacpp_timings(),
    "tensorrt-llm": tensorrt(),
    "transformers": transformers(),
    "vllm-metrics": vllm_metrics(),
    "llamacpp-metrics": vllm_metrics(prefix="llamacpp:", labels=""),
    "sglang-metrics": 'sglang:spec_accept_length{model_name="m"} 3.2\nsglang:spec_accept_rate{model_name="m"} 0.55\n',
    "vllm-log": vllm_log(),
    "llamacpp-log": llamacpp_log(),
    "llamacpp-passes": llamacpp_passes(),
    "ik-llama": ik_llama(),
    "sglang-requests": sglang_requests(),
    "vllm-v0-log": vllm_v0_log(),
    "speculation-profile": json.dumps(
        {
            "measured": True,
            "num_speculative_tokens": 2,
            "conditional_accept_rates": [0.8, 0.5],
            "marginal_accept_rates": [0.8, 0.4],
            "mean_accept_length": 2.2,
        }
    ),
    "vllm-forced": '{"num_speculative_tokens": 2, "synthetic_acceptance_rates": [0.8, 0.4]}',
    "llamacpp-forced": "llama-server --spec-draft-n-max 2 --spec-synth-rates 0.8,0.4",
    "sglang-forced": "export SGLANG_SIMULATE_ACC_LEN=2.2\n",
    "tensorrt-forced": "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS=1.2\n",
    "inferencex": "# dataset: coding\nlarge:\n  thinking_on:\n    1: 1.8\n    2: 2.2\n",
    "vllm-bench": vllm_bench(),
    "vllm-bench-text": vllm_bench_text(),
    "trtllm-bench": trtllm_bench(),
    "tensorrt-llm-requests": trtllm_requests(),
    "sglang-bench": '{"backend": "sglang", "mean_e2e_latency_ms": 31.5, "mean_ttft_ms": 9.5, "accept_length": 3.2}\n',
    "sglang-bench-text": "============ Serving Benchmark Result ============\nAccept length:         3.20\n",
    "sglang-log": "[2026-11-22 02:00:00] Decode batch, #running-req: 1, accept len: 3.20, accept rate: 0.55, gen: 1\n",
}
