"""Acceptance settings of other programs, written from runs. `forced` lists their forms and reads them."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from specbench.errors import UserError
from specbench.interop.readings.forced import VLLM_RATES, Acceptance
from specbench.interop.readings.pass_lists import tallies
from specbench.interop.readings.reading import together

METHODS = {"model": "draft_model", "lookup": "ngram"}  # else the kind
CHAINS = ("eagle", "eagle3", "draft_model")  # a shorter draft is the beginning of a longer one


def acceptance(record: Mapping[str, Any], where: str) -> Acceptance:
    """The acceptance by position of a run.

    Raises UserError if it drafts trees, or numbers of tokens that a policy chooses.
    """
    gamma = record["summary"]["gamma"]
    if record["summary"].get("tree") or gamma is None:
        raise UserError(
            f"{where}: forced acceptance needs a chain with a constant γ; name a run with gamma=NUMBER and tree=none"
        )
    tally = together(tallies(record, where))
    found, product = list[float](), 1.0
    for place in range(gamma):
        reached, accepted = (at[place] if place < len(at) else 0 for at in (tally.reached_at, tally.accepted_at))
        product *= accepted / reached if reached else 0.0
        found.append(product)
    return Acceptance(found)


def written(form: str, records: Sequence[Mapping[str, Any]]) -> str | dict[str, Any]:
    """The input of `form` for these runs: text, or an object for JSON. Only InferenceX takes several gammas.

    Raises UserError for runs that do not make one such file.
    """
    found = {record["run_id"]: acceptance(record, record["run_id"]) for record in records}
    first = records[0]
    if form == "inferencex":
        return _golden(records, found)
    if len(records) > 1:
        raise UserError(f"--as {form}: is of one run; --as inferencex takes a run for each γ")
    one = found[first["run_id"]]
    rates = [round(rate, 6) for rate in one.marginal]
    if form == "vllm":
        return {"num_speculative_tokens": one.gamma, "rejection_sample_method": "synthetic", VLLM_RATES: rates}
    if form == "llama.cpp":
        return f"--spec-draft-n-max {one.gamma} --spec-synth-rates {','.join(map(str, rates))}"
    if form == "sglang":
        names = {"LEN": f"{one.length:.4f}", "METHOD": "match-expected", "TOKEN_MODE": "real-draft-token"}
        return "\n".join(f"SGLANG_SIMULATE_ACC_{name}={value}" for name, value in names.items())
    if form == "tensorrt-llm":
        return f"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS={one.length - 1:.4f}"
    return _profile(first, one)


def _profile(record: Mapping[str, Any], one: Acceptance) -> dict[str, Any]:
    summary, kind = record["summary"], record["config"]["draft"]["kind"]
    method, mean = METHODS.get(kind, kind), round(one.length, 6)
    by_request = [tally.length for tally in tallies(record, record["run_id"]) if tally.length is not None]
    implied = round(1 + sum(round(rate, 6) for rate in one.marginal), 6)
    return {
        "schema_version": "1.0", "measured": not summary.get("simulated"), "method": method,
        "draft_checkpoint": {"name": summary["draft"]}, "target_model": {"name": summary["target"]},
        "num_speculative_tokens": one.gamma, "block_size": None, "max_supported_k": one.gamma,
        "verification_method": "block" if summary.get("accept") == "block" else "longest_prefix",
        "conditional_accept_rates": [round(rate, 6) for rate in one.conditional],
        "marginal_accept_rates": [round(rate, 6) for rate in one.marginal],
        "mean_accept_length": mean,
        "mean_accept_length_per_request": round(sum(by_request) / len(by_request), 6),
        "accept_length_model": "chain_analytic" if method in CHAINS else "measured_per_k",
        "accept_length_by_k": {str(one.gamma): mean},
        "acceptance_length_histogram": None,  # ends of completions are censored, which a histogram cannot say
        "per_category": None,
        "measurement_conditions": {
            "dataset": summary["task"], "num_samples": summary["prompts"], "temperature": summary["temperature"],
            "engine": "specbench", "hardware": summary["hardware"], "run_id": record["run_id"],
        },
        "validation": {
            "mean_consistency": {
                "implied_mean_accept_length": implied, "reported_mean_accept_length": mean,
                "abs_delta": round(abs(implied - mean), 6), "tolerance": 0.02, "passed": abs(implied - mean) <= 0.02,
            },
            "marginal_monotonicity": {"passed": True, "violations": []},
        },
    }  # fmt: skip


def _golden(records: Sequence[Mapping[str, Any]], found: Mapping[str, Acceptance]) -> str:
    """InferenceX' YAML: a length by gamma, of one target, draft and task. Its prompts are others (SPEED-Bench)."""
    first = records[0]["summary"]
    same = ("target", "draft", "task", "temperature", "accept", "processing", "context", "simulated")
    for record in records[1:]:
        if other := next((key for key in same if record["summary"].get(key) != first.get(key)), None):
            raise UserError(f"{record['run_id']}: has another {other}; the runs of --as inferencex differ only in γ")
    lengths = {one.gamma: round(one.length, 2) for one in sorted(found.values(), key=lambda one: one.gamma)}
    if len(lengths) < len(found):
        raise UserError("--as inferencex: two of the runs have the same γ; name one for each γ")
    how = "simulated" if first.get("simulated") else "measured"
    head = f"# dataset: {first['task']} | temperature: {first['temperature']:g} | {how} by specbench\n"
    body = {"_metadata": {"draft-model": first["draft"]}, first["target"]: {"thinking_off": lengths}}
    return head + yaml.safe_dump(body, sort_keys=False).rstrip()
