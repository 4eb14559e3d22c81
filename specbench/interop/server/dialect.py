"""Additions of engines to the OpenAI API: names of settings, the counts of an answer, and how they identify themselves.

Engines have defaults of their own if a request says nothing (top-k 40 and min-p .05 of llama.cpp; vLLM reads the
model's generation_config.json), so each setting is sent, also if it is off.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specbench.interop.readings.sglang import ACCEPTED_NAMES, DRAFTED_NAMES, STEPS
from specbench.records.served import DraftCounts
from specbench.sampling import Sampling


@dataclass(frozen=True)
class Dialect:
    """How one engine is asked beyond the API.

    Attributes:
        name: of the engine.
        off: settings that are sent even if they are off, with the value that means off.
        also: what else each request says.
        names: this engine's names of settings that have another.
    """

    name: str
    off: Mapping[str, object]
    also: Mapping[str, object]
    names: Mapping[str, str]


OFF = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
VLLM = Dialect("vLLM", OFF, {"return_token_ids": True}, {})
SGLANG = Dialect("SGLang", OFF, {}, {})
LLAMA_CPP = Dialect(
    "llama.cpp", {**OFF, "top_k": 0}, {"cache_prompt": False}, {"repetition_penalty": "repeat_penalty"},
)  # fmt: skip
LLAMA_CPP_PYTHON = Dialect(
    "llama-cpp-python", {**OFF, "top_k": 0}, {}, {"repetition_penalty": "repeat_penalty"},
)  # fmt: skip
PLAIN = Dialect("", {"top_p": 1.0}, {}, {})
# `owned_by` in the list of models.
OWNERS = {"vllm": VLLM, "sglang": SGLANG, "llamacpp": LLAMA_CPP, "me": LLAMA_CPP_PYTHON}


def settings(dialect: Dialect, sampling: Sampling, more: Mapping[str, object]) -> dict[str, object]:
    """The fields of a request that say how tokens are drawn; `more`: settings besides `sampling`."""
    given = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
    }
    asked = {**dialect.off, **{name: value for name, value in {**given, **more}.items() if value is not None}}
    return {dialect.names.get(name, name): value for name, value in asked.items()} | dict(dialect.also)


def counts_of(answer: Mapping[str, Any]) -> tuple[DraftCounts, str] | None:
    """An answer's own counts of its draft, and their field; None if it has no counts."""
    timings = answer.get("timings")
    if isinstance(timings, Mapping) and _is_count(timings.get("draft_n")):
        return DraftCounts(timings["draft_n"], _count(timings.get("draft_n_accepted"))), "timings"
    meta = _meta(answer)
    if _is_count(meta.get(STEPS)):
        accepted, drafted = (_first(meta, names) for names in (ACCEPTED_NAMES, DRAFTED_NAMES))
        if accepted is not None and drafted is not None:
            return DraftCounts(drafted, accepted, meta[STEPS]), "meta_info"
    usage = answer.get("usage")
    details = usage.get("completion_tokens_details") if isinstance(usage, Mapping) else None
    if isinstance(details, Mapping) and _is_count(details.get("accepted_prediction_tokens")):
        accepted, rejected = (_count(details.get(f"{which}_prediction_tokens")) for which in ("accepted", "rejected"))
        if accepted + rejected:  # servers without predictions say 0
            return DraftCounts(accepted + rejected, accepted), "usage"
    return None


def _meta(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    for place in (answer, first):
        if isinstance(meta := place.get("meta_info"), Mapping):
            return meta
    return {}


def _first(meta: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((meta[name] for name in names if _is_count(meta.get(name))), None)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _count(value: object) -> int:
    return value if isinstance(value, int) and _is_count(value) else 0
