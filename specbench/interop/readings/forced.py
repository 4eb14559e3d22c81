"""Acceptance settings of other programs, read. `forced_from_runs` writes them.

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
acceptance at each position is taken over the passes that reach it. None of the files holds counts: alpha is the one
whose expected tokens per pass are the file's.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import yaml

from specbench.config.own_choices import require_plain
from specbench.errors import UserError
from specbench.interop.readings.document import Document, number, whole_number
from specbench.interop.readings.estimate import alpha_of
from specbench.interop.readings.reading import LENGTH, MARGINAL, Printed, Reading

VLLM_RATES, VLLM_LENGTH = "synthetic_acceptance_rates", "synthetic_acceptance_length"
LLAMACPP = re.compile(r"--spec-synth-(len|rates)[ =]+([\d.,]+)")
LLAMACPP_GAMMA = re.compile(r"--(?:spec-draft-n-max|draft-max)[ =]+(\d+)")
SGLANG = re.compile(r"SGLANG_SIMULATE_ACC_LEN\W+([\d.]+)")
TENSORRT = re.compile(r"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS\W+([\d.]+)")
PROFILE = ("conditional_accept_rates", "marginal_accept_rates")
MODES = ("thinking_on", "thinking_off")


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
