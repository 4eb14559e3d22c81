"""The whole benchmark: its parts, their order, rows that name their unit, and their table and files."""

import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from specbench.algorithm.decoding import DecodingSpec, autoregressive, speculative
from specbench.algorithm.draft import Draft
from specbench.analysis.costs.core_time import TRIES, least_disturbed
from specbench.analysis.costs.disturbance import of_steps
from specbench.analysis.costs.probe import already_collected
from specbench.analysis.costs.roofline import roofline, weight_bytes
from specbench.bench.baselines import at_fixed_gamma, generate
from specbench.bench.parts import (
    TooShort,
    batch_decoders,
    bound,
    bytes_cached,
    experts_over_tokens,
    groups_of,
    over_lengths,
    over_tokens,
    over_vocabularies,
    take_apart,
)
from specbench.bench.peer_process import MATCH
from specbench.bench.peers import PEERS, Peer, Work
from specbench.bench.timing import Decoder, Timing, in_turn, peak_growth, times_faster
from specbench.engine.out_of_memory import is_out_of_memory
from specbench.engine.session import Model, Prompt
from specbench.errors import first_line
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.model.draft import ModelDraft
from specbench.records.served import UNKNOWN
from specbench.records.timed_documents import BenchRow
from specbench.sampling import Sampling


@dataclass(frozen=True)
class Bench:
    """The setup: the decoders compared, and for how long."""

    target: Model
    draft: Draft
    prompts: list[Prompt]
    gammas: list[int]
    max_new_tokens: int
    dtype: torch.dtype
    device: torch.device
    repeats: int = 3
    warmup_s: float = 0.0
    parts: str = "abcdefg"
    batches: tuple[int, ...] = (4, 16)
    bandwidth: float | None = None  # GB/s; None: as a copy of the weights' size measures it
    launch_us: float = 1.5
    peers: tuple[str, ...] = ()  # other engines, by name
    served: Mapping[str, Callable[[Work], Peer]] = field(default_factory=dict)  # the peers that run as servers
    folder: str | None = None  # of the target's weights, or its name on the hub


def bench(
    setup: Bench, say: Callable[[str], None], keep: Callable[[list[BenchRow]], object] | None = None
) -> list[BenchRow]:
    """All rows, in the order of the table. `say` receives the name of each part as it is timed.

    `keep` receives the rows so far after each part: a benchmark that is stopped has kept them. The rows
    of a part that waited for a core are marked. Parts that take seconds are repeated first.
    """
    parts = {name: (part, TRIES if letter in QUICK else 1) for letter, (name, part) in PARTS.items()
             if letter in setup.parts}  # fmt: skip
    parts |= {name: (partial(_against_peer, name=name), 1) for name in setup.peers}
    rows: list[BenchRow] = []
    for name, (part, tries) in parts.items():
        say(f"timing {name}")
        with already_collected():
            found, waited = least_disturbed(partial(part, setup), tries)
        signs = of_steps(waited, ()).all_signs
        rows += [replace(row, disturbed_by=signs) for row in found]
        if keep is not None:
            keep(rows)
    return rows


def _network(model: Any) -> Any:
    return model.network


def _ours(setup: Bench, gamma: int | None) -> Decoder:
    """Our decoding of a prompt, with encoder and prefill, as `generate` has them."""
    spec = DecodingSpec.algorithm_1(Sampling(), setup.max_new_tokens, gamma or 0)

    def decode(index: int) -> tuple[float, list[int]]:
        generator = torch.Generator(device=setup.device)
        began = setup.target.now()
        if gamma is None:
            trace = autoregressive(setup.target, setup.prompts[index], spec, generator)
        else:
            trace = speculative(setup.target, setup.draft, setup.prompts[index], spec, generator)
        return setup.target.now() - began, trace.tokens

    return decode


def _generate_of_transformers(setup: Bench, **keywords: Any) -> Decoder:
    def decode(index: int) -> tuple[float, list[int]]:
        began = setup.target.now()
        tokens = generate(_network(setup.target), setup.prompts[index], setup.max_new_tokens, **keywords)
        return setup.target.now() - began, tokens

    return decode


class _Fails(Exception):
    """`transformers` cannot decode a prompt: it does not support some models that we run."""


def _failing_as_theirs(decode: Decoder) -> Decoder:
    """`decode` of `transformers`, whose faults are told from ours: those end the benchmark as any fault does."""

    def attempt(index: int) -> tuple[float, list[int]]:
        try:
            return decode(index)
        except (RuntimeError, ValueError, IndexError, AttributeError, TypeError) as error:
            if is_out_of_memory(error):
                raise
            raise _Fails(first_line(error, 100)) from error

    return attempt


def _row(part: str, what: str, setup: Bench, decoders: tuple[Decoder, Decoder], prompts: int | None = None) -> BenchRow:
    """Our decoder against theirs, on the first `prompts` prompts or groups of them."""
    try:
        ours_theirs = {"ours": decoders[0], "theirs": _failing_as_theirs(decoders[1])}
        found = in_turn(ours_theirs, prompts or len(setup.prompts), setup.repeats)
    except _Fails as error:
        return BenchRow(part, what, unit="", note=f"their decoding fails: {error}")
    ours, theirs = found["ours"], found["theirs"]
    faster = times_faster(theirs, ours)
    same = sum(a.tokens == b.tokens for a, b in zip(ours, theirs, strict=True))

    def per_token(timings: list[Timing]) -> float:
        return 1000 * sum(t.seconds for t in timings) / sum(len(t.tokens) for t in timings)

    told = not any(UNKNOWN in timing.tokens for timing in theirs)
    note = f"same tokens in {same} of {len(ours)} completions" if told else "its tokens are not known"
    return BenchRow(
        part, what, per_token(ours), per_token(theirs), "ms/token", faster.value, faster.low, faster.high, note
    )


def _against_generate(setup: Bench) -> list[BenchRow]:
    return [_row("a", "autoregressive against generate", setup, (_ours(setup, None), _generate_of_transformers(setup)))]


def _against_peer(setup: Bench, name: str) -> list[BenchRow]:
    """The target in our loop and another engine's, with encoder and prefill: by itself, with lookup, with a draft.

    And prompts up to their first token, if it tells them apart.
    """
    assert setup.folder is not None
    make = setup.served.get(name) or PEERS[name]
    work = Work(setup.folder, setup.prompts, setup.max_new_tokens, setup.target.eos_ids, setup.dtype, setup.device)
    peer = make(work)
    with peer.process:
        rows = [_row("h", f"autoregressive against {name}", setup, (_ours(setup, None), peer.decode))]
        ways = [(peer.lookup, "prompt lookup", _looking_up(setup))]
        ways += [(peer.drafting, "speculative", setup)] if isinstance(setup.draft, ModelDraft) else []
        for theirs, way, ours_with in ways:
            for gamma in setup.gammas if theirs is not None else []:
                assert theirs is not None
                what = f"{way} against {name}'s, γ={gamma}"
                rows.append(_row("h", what, setup, (_ours(ours_with, gamma), theirs(gamma))))
        if peer.first is not None:
            rows += _prompts_against(setup, name, peer.first)
    ours = str(setup.dtype).removeprefix("torch.")
    return [replace(row, note=f"{peer.what}, ours in {ours}; {row.note}") for row in rows]


def _prompts_against(
    setup: Bench, name: str, theirs: Callable[[Sequence[int]], tuple[float, list[int]]]
) -> list[BenchRow]:
    """Prompts up to their first token, in our engine and in another."""
    rows = []
    for length in [one for one in _lengths(setup) if one in PEER_LENGTHS]:
        prompts = _of_length(setup, length)

        def their_first(index: int, prompts: list[list[int]] = prompts) -> tuple[float, list[int]]:
            return theirs(prompts[index])

        decoders = partial(_timed_first_token, setup, prompts), their_first
        row = _row("h", f"a prompt of {length} tokens against {name}", setup, decoders, OF_A_LENGTH)
        rows.append(replace(row, unit="ms" if row.unit else ""))
    return rows


def _looking_up(setup: Bench) -> Bench:
    """The setup with our prompt lookup as the draft."""
    return replace(setup, draft=LookupDraft(setup.target.vocabulary_size, setup.device, MATCH))


def _against_assisted(setup: Bench) -> list[BenchRow]:
    if not isinstance(setup.draft, ModelDraft):
        return [BenchRow("b", "speculative against assisted generation", note="not measured: the draft has no network")]
    rows = []
    for gamma in setup.gammas:
        what = f"speculative against assisted generation, γ={gamma}"
        helper = at_fixed_gamma(_network(setup.draft.model), gamma)
        rows.append(
            _row("b", what, setup, (_ours(setup, gamma), _generate_of_transformers(setup, assistant_model=helper)))
        )
    return rows


def _batches_against_generate(setup: Bench) -> list[BenchRow]:
    rows = []
    for size in setup.batches:
        what = f"autoregressive against generate, batch={size}"
        groups = groups_of(setup.prompts, size)
        decoders = batch_decoders(setup.target, _network(setup.target), groups, size, setup.max_new_tokens)
        row = _row("g", what, setup, decoders, len(groups))
        rows.append(replace(row, note=row.note.replace("completions", "batches")))
    return rows


def _step_against_floor(setup: Bench) -> list[BenchRow]:
    rows = []
    models = {"target": setup.target} | ({"draft": setup.draft.model} if isinstance(setup.draft, ModelDraft) else {})
    for name, model in models.items():
        size = weight_bytes(model, setup.dtype)
        least = roofline(model, setup.dtype)
        floor = least.reading
        step = over_lengths(model, setup.prompts[0])
        seconds = next(iter(step.values()))
        note = f"{seconds / floor:.2f} times the floor: {size / 2**20:.1f} MiB at {size / floor / 1e9:.0f} GB/s"
        rows.append(BenchRow("d", f"{name} step over its bandwidth floor", 1000 * seconds, 1000 * floor, note=note))
        note = (
            f"from here on multiply-adds bind: {model.operations / 2e6:.1f} million a token, "
            f"{model.operations / 2e9 / least.multiplying:.0f} billion a second; a run over n tokens takes at least "
            f"max({1000 * floor:.3f}, {1000 * least.multiplying:.3f} n) ms"
        )
        rows.append(
            BenchRow("d", f"{name}, tokens at which v begins to grow (Ω)", least.turning, unit="tokens", note=note)
        )
        shortest, note, more = bound(model, setup.prompts[0], setup.bandwidth or size / floor / 1e9, setup.launch_us)
        what = f"{name} step over its bound from the graph"
        rows.append(BenchRow("d", what, None if shortest is None else 1000 * seconds, shortest, note=note, more=more))
    return rows


def _inside_a_pass(setup: Bench) -> list[BenchRow]:
    if not isinstance(setup.draft, ModelDraft):
        return []
    rows = []
    for gamma in setup.gammas:
        try:
            parts, step = take_apart(setup.target, setup.draft, setup.prompts, gamma, setup.max_new_tokens)
        except TooShort:
            note = "not measured: no completion is long enough for a second pass"
            rows.append(BenchRow("e", f"a pass, γ={gamma}", unit="", note=note))
            continue
        c, v = parts.drafting / gamma / step, parts.verifying / step
        note = f"{parts.whole / step:.2f} target steps; only the models: c = {c:.3f}, v = {v:.3f}"
        more = {"c": c, "verify_cost": v, "overhead_share": parts.overhead / parts.whole}
        rows.append(BenchRow("e", f"a pass, γ={gamma}", 1000 * parts.whole, note=note, more=more))
        shares = {
            f"{gamma} draft steps, the model": parts.drafting,
            f"target over {gamma + 1} tokens, the model": parts.verifying,
            "loop overhead: all the rest": parts.overhead,
            "  drafted tokens chosen": parts.choosing,
            "  the target's tokens chosen": parts.scoring,
            "  accepted, rolled back": parts.accepting,
        }
        for what, seconds in shares.items():
            rows.append(
                BenchRow("e", f"  {what}", 1000 * seconds, note=f"{100 * seconds / parts.whole:.1f}% of the pass")
            )
    return rows


def _against_lookup(setup: Bench) -> list[BenchRow]:
    """Ours also searches the source; transformers' sees only decoder tokens."""
    rows = []
    for gamma in setup.gammas:
        what = f"prompt lookup against generate's, γ={gamma}"
        theirs = _generate_of_transformers(setup, prompt_lookup_num_tokens=gamma, max_matching_ngram_size=MATCH)
        rows.append(_row("c", what, setup, (_ours(_looking_up(setup), gamma), theirs)))
    return rows


def _start_and_memory(setup: Bench) -> list[BenchRow]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    rows = [
        BenchRow("f", "engines made ready", setup.warmup_s, unit="s"),
        BenchRow("f", "peak memory of the process", peak / 2**20, unit="MiB"),
    ]
    if setup.device.type == "cuda":
        on_gpu = torch.cuda.max_memory_allocated(setup.device)
        rows.append(BenchRow("f", "peak memory of the GPU", on_gpu / 2**20, unit="MiB"))
    return rows


def _growth(setup: Bench) -> list[BenchRow]:
    prompt = setup.prompts[0]
    rows = _start_and_memory(setup)
    least = roofline(setup.target, setup.dtype)
    seconds_over, read = over_tokens(setup.target, prompt), experts_over_tokens(setup.target, prompt)
    for count, seconds in seconds_over.items():
        of_run = least.of_run(count, read.get(count, 1.0))
        more = {"verify_cost": seconds / seconds_over[1]}
        note = f"v = {more['verify_cost']:.2f}; its roofline {least.verify_cost(count, read.get(count, 1.0)):.2f}"
        if count in read:
            more |= {"experts": read[count], "predicted": least.verify_cost(count, read[count])}
            note += f"; {more['experts']:.2f} times the experts of a step"
        rows.append(BenchRow("f", f"target over {count} tokens", 1000 * seconds, 1000 * of_run, note=note, more=more))
    rows += [
        BenchRow("f", f"target step after {length} tokens", 1000 * seconds)
        for length, seconds in over_lengths(setup.target, prompt).items()
    ]
    rows += [
        BenchRow("f", f"standardise and accept at T=1, V={size}", 1000 * seconds)
        for size, seconds in over_vocabularies(setup.target, setup.device, prompt).items()
    ]
    return rows


PROMPT_LENGTHS = (128, 512, 2048, 8192)  # tokens
PEER_LENGTHS = (512, 2048)  # of these, for which a server of another engine has room
OF_A_LENGTH = 2  # prompts


def _long_prompts(setup: Bench) -> list[BenchRow]:
    """Prompts of several lengths up to their first token, in our engine and in `transformers`' own forward pass."""
    network = _network(setup.target)
    if network.config.is_encoder_decoder:
        return [BenchRow("i", "prompts up to the first token", unit="", note="not measured: the target has an encoder")]
    if not _lengths(setup):
        why = f"not measured: the target has {setup.target.longest} positions"
        return [BenchRow("i", "prompts up to the first token", unit="", note=why)]
    rows = []
    for length in _lengths(setup):
        prompts = _of_length(setup, length)
        memory = peak_growth(lambda tokens=prompts[0]: _first_token(setup.target, tokens))  # type: ignore[misc]
        row = _row("i", f"a prompt of {length} tokens", setup, _reading(setup, network, prompts), OF_A_LENGTH)
        note = row.note if memory is None else f"{row.note}; ours took {memory / 2**20:.0f} MiB beside the weights"
        more = {} if row.ours is None else {"prefill_per_s": 1000 * length / row.ours}
        rows.append(replace(row, unit="ms" if row.unit else "", note=note, more=more))
    return rows + _over_contexts(setup, prompts[0], _lengths(setup, max(VERIFIED)))


def _lengths(setup: Bench, more: int = 0) -> list[int]:
    """The lengths of `PROMPT_LENGTHS` for which the target has positions, and for so many tokens more."""
    longest = setup.target.longest or max(PROMPT_LENGTHS)
    return [one for one in PROMPT_LENGTHS if one + more <= longest]


def _of_length(setup: Bench, length: int) -> list[list[int]]:
    """Prompts of so many tokens, made of the texts of all."""
    text = [token for prompt in setup.prompts for token in prompt.prefix]
    several = text * (-(-(length + OF_A_LENGTH) // len(text)))
    return [several[first : first + length] for first in range(OF_A_LENGTH)]


VERIFIED = (1, 2, 4, 8)  # tokens of a pass
IN_A_CONTEXT = 15  # times that each is timed


def _over_contexts(setup: Bench, text: Sequence[int], lengths: Sequence[int]) -> list[BenchRow]:
    """A step, and v of passes over several tokens, after so many tokens of context, with their roofline.

    A run reads the weights and the cache of all tokens before it, at the bandwidth of a copy.
    """
    least, weights = roofline(setup.target, setup.dtype), weight_bytes(setup.target, setup.dtype)
    rows = []
    for length in lengths:
        cached = bytes_cached(setup.target, length)
        bound = replace(least, reading=least.reading * (1 + cached / weights))
        seconds = over_tokens(setup.target, Prompt((), tuple(text[:length])), VERIFIED, (), IN_A_CONTEXT)
        costs = {count: seconds[count] / seconds[1] for count in VERIFIED[1:]}
        more = {"context": float(length), "cache_bytes": float(cached)}
        more |= {f"verify_cost_{count}": cost for count, cost in costs.items()}
        more |= {f"roofline_{count}": bound.verify_cost(count) for count in costs}
        measured = ", ".join(
            f"v({count}) = {cost:.2f} (roofline {bound.verify_cost(count):.2f})" for count, cost in costs.items()
        )
        note = (
            f"{seconds[1] / bound.of_run(1):.2f} times the floor: {weights / 2**20:.1f} MiB of weights and "
            f"{cached / 2**20:.1f} MiB of cache; {measured}"
        )
        rows.append(
            BenchRow(
                "i", f"a step after {length} tokens", 1000 * seconds[1], 1000 * bound.of_run(1), note=note, more=more
            )
        )
    return rows


def _reading(setup: Bench, network: Any, prompts: list[list[int]]) -> tuple[Decoder, Decoder]:
    """Our reading of a prompt up to its first token, and theirs."""
    now = setup.target.now

    def theirs(index: int) -> tuple[float, list[int]]:
        began = now()
        with torch.inference_mode():
            ids = torch.tensor([prompts[index]], device=setup.device)
            token = int(network(input_ids=ids, use_cache=True, logits_to_keep=1).logits[0, -1].argmax())
        return now() - began, [token]

    return partial(_timed_first_token, setup, prompts), theirs


def _timed_first_token(setup: Bench, prompts: Sequence[list[int]], index: int) -> tuple[float, list[int]]:
    """Our seconds up to the first token after a prompt, and the token."""
    began = setup.target.now()
    token = _first_token(setup.target, prompts[index])
    return setup.target.now() - began, [token]


def _first_token(target: Model, tokens: list[int]) -> int:
    """The likeliest token after a prompt."""
    return int(target.start(Prompt((), tuple(tokens))).extend(tokens[-1:])[0].argmax())


QUICK = "def"  # parts that are repeated if another process disturbed them
PARTS: dict[str, tuple[str, Callable[[Bench], list[BenchRow]]]] = {
    "a": ("generate", _against_generate),
    "b": ("assisted generation", _against_assisted),
    "c": ("prompt lookup", _against_lookup),
    "d": ("a step", _step_against_floor),
    "e": ("a pass", _inside_a_pass),
    "f": ("start, memory and growth", _growth),
    "g": ("batches", _batches_against_generate),
    "i": ("long prompts", _long_prompts),
}
