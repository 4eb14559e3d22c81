"""Decode prompts with and without the draft, singly or in batches: the raw measurement of every number."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from specbench.algorithm.acceptance.rules.lenient import lenient
from specbench.algorithm.decoding import DecodingSpec, autoregressive, speculative
from specbench.algorithm.tree_draft import TreeDraft
from specbench.analysis.acceptance.agreement import LENIENCES, agreements
from specbench.analysis.acceptance.ranks import MOST_RANKS, RankReader, Ranks, k_seq_of
from specbench.analysis.costs.core_time import CoreTime, between, core_times
from specbench.analysis.forecast.grown_trees import counts_of_children, forecast_passes
from specbench.analysis.proof.departures import difference
from specbench.analysis.proof.evidence import evidence
from specbench.engine.session import Prompt
from specbench.errors import MachineError
from specbench.experiment.machine import machine_of
from specbench.experiment.meter import meter_of
from specbench.experiment.run_parts import Parts, build_verification
from specbench.records.decoded import Trace
from specbench.records.machine_record import StateRecord
from specbench.records.prompt_sums import Difference, TreeForecast, UsedRecord
from specbench.records.run_record import DecodingMode, PromptRecord
from specbench.sampling import Sampling
from specbench.theory.trees import TreeShape

T = TypeVar("T")
CHECKED_PROMPTS = 2  # prompts on which a sampled run first proves greedy identity
WARMUP_TOKENS = 32
GREEDY = Sampling(temperature=0.0)


def warm_up(parts: Parts) -> None:
    """Decode a few prompts before timing starts; at T > 0, also prove the loop at T = 0."""
    for index in range(min(parts.config.warmup, len(parts.prompts))):
        decode_both(parts, shortened(parts), index)
    if is_proved_greedily(parts):
        prove_greedily(parts)


def shortened(parts: Parts) -> DecodingSpec:
    """`spec` for a warm-up."""
    return replace(parts.spec, max_new_tokens=min(WARMUP_TOKENS, parts.config.max_new_tokens))


def greedy(parts: Parts) -> DecodingSpec:
    """The run's own loop at T = 0."""
    return replace(parts.spec, sampling=GREEDY, verification=build_verification(parts.config, GREEDY))


def is_proved_greedily(parts: Parts) -> bool:
    """Whether the run samples losslessly, so that its loop is first proved at T = 0."""
    lossless = parts.config.simulate.alpha is None and parts.spec.verification.lossy is None
    return parts.config.sampling.temperature > 0 and lossless


def prove_greedily(parts: Parts) -> None:
    """Decode two prompts at T = 0, where completions can be compared token by token.

    A cache that is off by one shows in few tokens, where the proof of a sampled completion
    (`analysis.proof`) needs hundreds. The second copies what both begin with.
    """
    parts = parts.sharing()
    for index in range(min(CHECKED_PROMPTS, len(parts.prompts))):
        require_same(parts, index, *decode_both(parts, greedy(parts), index))


def require_same(parts: Parts, index: int, alone: Trace, ours: Trace) -> None:
    """Check that two greedy completions of a prompt are equal except for rounding.

    Raises MachineError if they are not.
    """
    found = unexplained_difference(parts, index, alone.tokens, ours.tokens)
    if found is not None:
        how = "although numerics are invariant" if parts.invariant else "by more than rounding"
        raise MachineError(
            f"prompt {index + 1}: speculative decoding differs from the target's own greedy completion at token "
            f"{found.position + 1}, {how} (margin {found.margin:.3g}, noise "
            f"{found.noise:.3g}): this is a fault of specbench or of the model's cache; please report it"
        )


def unexplained_difference(parts: Parts, index: int, baseline: Sequence[int], ours: Sequence[int]) -> Difference | None:
    """The difference of two greedy completions of a prompt; None if they are equal, or if rounding explains it."""
    found = _difference(parts, index, baseline, ours)
    return None if found is None or (found.is_rounding and not parts.invariant) else found


def _difference(parts: Parts, index: int, baseline: Sequence[int], ours: Sequence[int]) -> Difference | None:
    """The difference of two greedy completions of a prompt, which end as the run's completions do."""
    spec = parts.spec
    return difference(parts.target, parts.prompts[index], baseline, ours, spec.max_new_tokens, spec.stops)


def measure_prompt(parts: Parts, index: int) -> PromptRecord:
    """The raw record of one prompt, decoded with and without the draft."""
    machine, meter = machine_of(parts.device), meter_of(parts.device)
    if parts.shared is not None:
        parts.shared.expect(index, parts.prompts[index])
    states, before = [machine.state()], core_times()
    (baseline, alone), (ours, both) = alternated(
        index,
        partial(meter.measured, baseline_of(parts, parts.spec, index)),
        partial(meter.measured, speculative_of(parts, parts.spec, index)),
    )
    load = between(before, core_times())
    states.append(machine.state())
    prompt = prompt_record(parts, index, baseline, ours, load)
    return with_surroundings(prompt, states, alone, both)


def with_surroundings(
    prompt: PromptRecord, states: Sequence[StateRecord | None], alone: UsedRecord, both: UsedRecord
) -> PromptRecord:
    """`prompt` with the state of the machine before and after it, and what its two decodings used."""
    if known := [state for state in states if state is not None]:
        prompt["states"] = known
    if alone or both:
        prompt["used"] = {"baseline": alone, "speculative": both}
    return prompt


def prompt_record(parts: Parts, index: int, baseline: Trace, ours: Trace, load: CoreTime | None) -> PromptRecord:
    """The raw record of one prompt.

    Both traces, beta at each token of the target, whether the completions agree (T = 0), and the sums of the proof (T >
    0). A lossy rule has neither. The acceptance under a rule with an alpha of its own is recorded too (`rule`).
    """
    prompt, example, sampling = parts.prompts[index], parts.examples[index], parts.spec.sampling
    raw: PromptRecord = {
        "index": example.index,
        "prompt": example.prompt,
        "reference": example.reference,
        "prompt_tokens": len(prompt.source) + len(prompt.prefix),
        "baseline": replace(baseline, text=parts.vocabulary.text(baseline.tokens)),
        "speculative": replace(ours, text=parts.vocabulary.text(ours.tokens)),
        "difference": None,
        "beta": [],
        "load": None if load is None else {"ran_s": load.ran_s, "waited_s": load.waited_s},
    }
    if example.category is not None:
        raw["category"] = example.category
    if (tags := parts.vocabulary.thinking_tags) is not None:
        raw["thinking"] = parts.vocabulary.is_inside(tags, prompt.prefix)
    if turn := example.turn or len(example.turns):
        raw["turn"] = turn
    if parts.config.simulate.alpha is not None:  # acceptance was at random: there is nothing to compare
        raw["beta"] = [parts.config.simulate.alpha] * len(baseline.tokens)
        return raw
    lossy = parts.spec.verification.lossy
    if sampling.temperature == 0 and lossy is None:
        raw["difference"] = _difference(parts, index, baseline.tokens, ours.tokens)
        if raw["difference"] is not None and parts.invariant:  # then nothing rounds in two ways
            raw["difference"] = replace(raw["difference"], is_rounding=False)
    rules = {f"{lenience:g}": lenient(lenience, sampling) for lenience in LENIENCES}
    if lossy is not None:
        rules["rule"] = lossy
    draft = parts.draft
    scored, levels, reader = draft, 1, None
    if isinstance(draft, TreeDraft) and parts.config.draft.scores_children:
        generator = generator_for(parts.config.seed, index, "ranks", parts.device)
        scored, levels = draft.draft, draft.plan.depth
        most = max(MOST_RANKS, draft.plan.most_children)
        k_seq = counts_of_children(draft.plan) if parts.spec.verification.traits.k_sequential else ()
        reader = RankReader(sampling, generator, most=most, levels=levels, k_seq=k_seq)
    agreement = agreements(parts.target, [scored], prompt, baseline.tokens, sampling, rules, levels, [reader])[0]
    # Sums over the tokens are all that alpha(l) and its interval need.
    under = {name: sum(values) for name, values in agreement.under.items()}
    varied = {name: sum(values) for name, values in agreement.total_variation.items()}
    if lossy is not None:
        raw["rule"] = {"accept_probability": under.pop("rule"), "total_variation": varied.pop("rule")}
    elif sampling.temperature > 0:
        raw["proof"] = evidence(parts.target, parts.draft, prompt, ours.tokens, sampling, parts.spec.drafting)
        if (rule := parts.spec.verification.own_alpha) is not None:
            raw["rule"] = {"accept_probability": sum(agreement.others[rule].beta)}
    if isinstance(draft, TreeDraft) and lossy is None:
        raw["tree"] = _forecast(parts, draft, prompt, baseline.tokens, agreement.ranks)
    if stores := draft.stores():
        raw["grown"] = sum(one.grown or 0 for one in stores)
    raw["beta"], raw["lenient"], raw["total_variation"] = agreement.beta, under, varied
    raw["signs"] = agreement.signs
    return raw


def _forecast(parts: Parts, draft: TreeDraft, prompt: Prompt, text: list[int], ranks: Ranks | None) -> TreeForecast:
    k_seq = parts.spec.verification.traits.k_sequential
    most, finds = parts.config.max_new_tokens, parts.config.draft.found_in_text
    passes = forecast_passes(parts.target, draft, prompt, text, parts.spec.sampling, most, ranks, finds, k_seq)
    children: str = draft.children
    if k_seq:  # its ranks depend on the number of children: the root's is taken, which every pass visits
        assert isinstance(draft.plan, TreeShape), "K-SEQ requires tree=widths"
        children = k_seq_of(draft.plan.children[0])
    return {
        "accepted": None if ranks is None else ranks.accepted_for(children),
        "passes": None if passes is None else float(passes.sum()),
    }


def decode_both(parts: Parts, spec: DecodingSpec, index: int) -> tuple[Trace, Trace]:
    """The baseline and the speculative decoding of one prompt."""
    return alternated(index, baseline_of(parts, spec, index), speculative_of(parts, spec, index))


def alternated(number: int, baseline: Callable[[], T], ours: Callable[[], T]) -> tuple[T, T]:
    """The results of `baseline` and `ours`.

    Which goes first alternates with `number`, so that a machine that slows down or speeds up favours neither.
    """
    if number % 2 == 0:
        return baseline(), ours()
    second = ours()
    return baseline(), second


def baseline_of(parts: Parts, spec: DecodingSpec, index: int) -> Callable[[], Trace]:
    """A decoder of a prompt with the target alone."""
    generator = generator_for(parts.config.seed, index, "baseline", parts.device)
    return copying(parts, "baseline", partial(autoregressive, parts.target, parts.prompts[index], spec, generator))


def speculative_of(parts: Parts, spec: DecodingSpec, index: int) -> Callable[[], Trace]:
    """A speculative decoder of a prompt."""
    generator = generator_for(parts.config.seed, index, "speculative", parts.device)
    decode = partial(speculative, parts.target, parts.draft, parts.prompts[index], spec, generator)
    return copying(parts, "speculative", decode)


def copying(parts: Parts, mode: DecodingMode, decode: Callable[[], T]) -> Callable[[], T]:
    """`decode`, with the beginnings that this kind of decoding has read before."""
    shared = parts.shared
    if shared is None:
        return decode

    def decoded() -> T:
        with shared.copied(mode):
            return decode()

    return decoded


def generator_for(seed: int, index: int, stream: str, device: torch.device) -> torch.Generator:
    """The random numbers of one prompt and one purpose, independent of all others."""
    words = [seed, index, *stream.encode()]
    return torch.Generator(device).manual_seed(int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1))
