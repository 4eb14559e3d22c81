"""Acceptance settings of other programs: written from runs, and read back.

Benchmarks of engines force the acceptance of drafted tokens, so that it is the same on every machine. Their settings:

| form | takes | counts the target's own token | source |
| --- | --- | --- | --- |
| vLLM, `synthetic_acceptance_rates`, `_length` | P(first i + 1 accepted); tokens per pass | yes | vllm#40662 |
| llama.cpp, `--spec-synth-rates`, `--spec-synth-len` | the same | yes | llama.cpp#27711 |
| SGLang, `SGLANG_SIMULATE_ACC_LEN` | tokens per pass | yes | InferenceX, golden_al_distribution/README.md |
| TensorRT-LLM, `TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS` | accepted tokens per pass | no | the same |
| `speculation_profile.json` | P(first i + 1 accepted), P(i + 1 if i are) | in its mean | Model-Optimizer#2247 |
| InferenceX, golden acceptance lengths (YAML) | tokens per pass by gamma | yes | golden_al_distribution/README.md |

From a length vLLM accepts as many tokens as are whole and the next with what is left (`_acceptance_length_to_rates`);
llama.cpp accepts each with one probability p, with p + ... + p^gamma the length less 1.

All are of completions that continue. Passes that end a completion, or have no room for gamma tokens, are censored: the
acceptance at each position is taken over the passes that reach it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import yaml

from specbench.config.own_choices import require_plain
from specbench.errors import UserError
from specbench.interop.readings.document import Document, number, whole_number
from specbench.interop.readings.estimate import alpha_of
from specbench.interop.readings.pass_lists import tallies
from specbench.interop.readings.reading import LENGTH, MARGINAL, Printed, Reading, together

VLLM_RATES, VLLM_LENGTH = "synthetic_acceptance_rates", "synthetic_acceptance_length"
LLAMACPP = re.compile(r"--spec-synth-(len|rates)[ =]+([\d.,]+)")
LLAMACPP_GAMMA = re.compile(r"--(?:spec-draft-n-max|draft-max)[ =]+(\d+)")
SGLANG = re.compile(r"SGLANG_SIMULATE_ACC_LEN\W+([\d.]+)")
TENSORRT = re.compile(r"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS\W+([\d.]+)")
PROFILE = ("conditional_accept_rates", "marginal_accept_rates")
MODES = ("thinking_on", "thinking_off")
METHODS = {"model": "draft_model", "lookup": "ngram"}  # else the kind
CHAINS = ("eagle", "eagle3", "draft_model")  # a shorter draft is the beginning of a longer one


@dataclass(frozen=True)
class Acceptance:
    """Acceptance in a run at one gamma: the probability that the first, first two, ... tokens are all accepted."""

    marginal: Sequence[float]

    @property
    def gamma(self) -> int:
        return len(self.marginal)

    @property
    def length(self) -> float:
        """Tokens a pass, with the one that the target adds."""
        return 1 + sum(self.marginal)

    @property
    def conditional(self) -> list[float]:
        """The acceptance at each position if all before it were accepted; 0 if that never is."""
        before = (1.0, *self.marginal)
        return [one / of if of else 0.0 for one, of in zip(self.marginal, before, strict=False)]


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


# Reading back. None of the files holds counts: alpha is the one whose expected tokens per pass are the file's.


def read_vllm(document: Document) -> Reading:
    """The reading of a speculative config with forced acceptance."""
    for value in document.values:
        config = value.fields.get("speculative_config", value.fields)
        if not isinstance(config, dict):
            raise UserError(f"{value.where}: speculative_config is no object")
        gamma = whole_number(config.get("num_speculative_tokens"), value.where, "num_speculative_tokens")
        if (rates := config.get(VLLM_RATES)) is not None:
            return _reading(VLLM_RATES, _rates(rates, value.where, VLLM_RATES, gamma))
        return _reading(VLLM_LENGTH, from_length(number(config.get(VLLM_LENGTH), value.where, VLLM_LENGTH), gamma))
    raise UserError(f"{document.path}: no speculative config")


def read_llamacpp(document: Document) -> Reading:
    """The reading of a command line with forced acceptance."""
    text = "\n".join(document.lines)
    match, drafted = LLAMACPP.search(text), LLAMACPP_GAMMA.search(text)
    if match is None:
        raise UserError(f"{document.path}: --spec-synth-len and --spec-synth-rates take numbers")
    if match[1] == "rates":
        given = [_real(rate, document) for rate in match[2].strip(",").split(",")]
        return _reading("--spec-synth-rates", _rates(given, str(document.path), "--spec-synth-rates"))
    if drafted is None:
        raise UserError(f"{document.path}: --spec-synth-len without --spec-draft-n-max, its γ")
    gamma, length = int(drafted[1]), _real(match[2].strip(","), document)
    alpha = alpha_of(length - 1, gamma)
    return _reading("--spec-synth-len", Acceptance([alpha**place for place in range(1, gamma + 1)]))


def read_sglang(document: Document) -> Reading:
    """The reading of SGLang's variable: a length, with the target's token."""
    return _of_length("SGLANG_SIMULATE_ACC_LEN", _number_after(SGLANG, document))


def read_tensorrt(document: Document) -> Reading:
    """The reading of TensorRT-LLM's variable, which counts only accepted draft tokens."""
    return _of_length("TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS + 1", 1 + _number_after(TENSORRT, document))


def read_profile(document: Document) -> Reading:
    """The reading of `speculation_profile.json`."""
    for value in document.values:
        if value.fields.get("measured") is False and not value.fields.get(PROFILE[1]):
            break
        found = _rates(value.fields.get(PROFILE[1]), value.where, PROFILE[1])
        conditional = value.fields.get(PROFILE[0])
        theirs = Acceptance(found.marginal).conditional
        if not isinstance(conditional, list) or any(
            abs(one - number(other, value.where, PROFILE[0])) > 0.01
            for one, other in zip(theirs, conditional, strict=False)
        ):
            raise UserError(f"{value.where}: {PROFILE[0]} and {PROFILE[1]} contradict each other")
        reading = _reading(PROFILE[1], found)
        mean = number(value.fields.get("mean_accept_length"), value.where, "mean_accept_length")
        return Reading([Printed("mean_accept_length", mean, LENGTH), *reading.printed], notes=reading.notes)
    raise UserError(f"{document.path}: a profile in which nothing was measured")


def read_golden(document: Document) -> Reading:
    """The reading of InferenceX' lengths: by model, thinking mode and gamma."""
    try:
        require_plain(text := "\n".join(document.lines))
        content = yaml.safe_load(text)
        tables = {
            (model, mode): modes[mode]
            for model, modes in content.items()
            if isinstance(modes, dict) and model != "_metadata"
            for mode in modes
        }
        printed = []
        for (model, mode), lengths in tables.items():
            for gamma, length in lengths.items():
                name, value = f"{model}, {mode}, {gamma}", float(length)
                printed.append(Printed(name, value, LENGTH, ends="in"))
                printed.append(Printed(name, alpha_of(value - 1, int(gamma)), "α by moments", ends="in"))
    except (yaml.YAMLError, AttributeError, TypeError, ValueError, ArithmeticError) as error:
        raise UserError(f"{document.path}: no lengths by model, thinking mode and γ ({error})") from error
    if not printed:
        raise UserError(f"{document.path}: no lengths by model, thinking mode and γ")
    return Reading(printed, ends="in", notes=[NO_COUNTS])


NO_COUNTS = "a target of a benchmark, without counts: α has no interval"


def from_length(length: float, gamma: int) -> Acceptance:
    """vLLM's rates for a length: whole tokens are always accepted, and the next with what is left."""
    return Acceptance([min(1.0, max(0.0, length - 1 - place)) for place in range(gamma)])


def _real(text: str, document: Document) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise UserError(f"{document.path}: {text!r} is not a number") from error


def _number_after(pattern: re.Pattern[str], document: Document) -> float:
    for line in document.lines:
        if match := pattern.search(line):
            return _real(match[1].strip("."), document)
    raise UserError(f"{document.path}: no number after the variable")


def _rates(values: object, where: str, name: str, gamma: int | None = None) -> Acceptance:
    """Marginal rates, checked as the engines check them."""
    rates = [number(one, where, name) for one in values] if isinstance(values, list) else []
    if not rates or any(not 0 <= one <= 1 for one in rates) or any(b > a for a, b in pairwise(rates)):
        raise UserError(f"{where}: {name} must be numbers from 0 to 1 that never rise")
    if gamma is not None and gamma != len(rates):
        raise UserError(f"{where}: {name} has {len(rates)} rates for γ={gamma}")
    return Acceptance(rates)


def _reading(name: str, found: Acceptance) -> Reading:
    printed = [Printed(f"{name}, 1 + sum", found.length, LENGTH, ends="in")]
    printed += [Printed(name, rate, MARGINAL.format(place), ends="in") for place, rate in enumerate(found.marginal, 1)]
    printed += [
        Printed(name, rate, f"conditional acceptance at position {place}", ends="in")
        for place, rate in enumerate(found.conditional, 1)
    ]
    alpha = alpha_of(found.length - 1, found.gamma)
    return Reading(
        [*printed, Printed(name, alpha, "α by moments", ends="in")], ends="in", notes=[NO_COUNTS]
    )  # fmt: skip


def _of_length(name: str, length: float) -> Reading:
    return Reading(
        [Printed(name, length, LENGTH, ends="in")], ends="in", notes=[f"{NO_COUNTS}, and no γ is in the file"]
    )
