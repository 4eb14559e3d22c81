"""The whole benchmark: its parts and their order."""

import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from specbench.analysis.costs.core_time import TRIES, least_disturbed
from specbench.analysis.costs.disturbance import of_steps
from specbench.analysis.costs.probe import already_collected
from specbench.analysis.costs.roofline import roofline, weight_bytes
from specbench.bench.baselines import at_fixed_gamma
from specbench.bench.bench_setup import Bench, generate_of_transformers, network_of, our_decoder, row_of
from specbench.bench.long_prompts import (
    OF_A_LENGTH,
    PEER_LENGTHS,
    lengths_of,
    over_prompt_lengths,
    timed_first_token,
    token_prompts,
)
from specbench.bench.parts import (
    TooShort,
    batch_decoders,
    bound,
    experts_over_tokens,
    groups_of,
    over_lengths,
    over_tokens,
    over_vocabularies,
    take_apart,
)
from specbench.bench.peer_process import MATCH
from specbench.bench.peers import PEERS, Work
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.model.draft import ModelDraft
from specbench.records.timed_documents import BenchRow


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


def _against_generate(setup: Bench) -> list[BenchRow]:
    return [
        row_of(
            "a", "autoregressive against generate", setup, (our_decoder(setup, None), generate_of_transformers(setup))
        )
    ]


def _against_peer(setup: Bench, name: str) -> list[BenchRow]:
    """The target in our loop and another engine's, with encoder and prefill: by itself, with lookup, with a draft.

    And prompts up to their first token, if it tells them apart.
    """
    assert setup.folder is not None
    make = setup.served.get(name) or PEERS[name]
    work = Work(setup.folder, setup.prompts, setup.max_new_tokens, setup.target.eos_ids, setup.dtype, setup.device)
    peer = make(work)
    with peer.process:
        rows = [row_of("h", f"autoregressive against {name}", setup, (our_decoder(setup, None), peer.decode))]
        ways = [(peer.lookup, "prompt lookup", _looking_up(setup))]
        ways += [(peer.drafting, "speculative", setup)] if isinstance(setup.draft, ModelDraft) else []
        for theirs, way, ours_with in ways:
            for gamma in setup.gammas if theirs is not None else []:
                assert theirs is not None
                what = f"{way} against {name}'s, γ={gamma}"
                rows.append(row_of("h", what, setup, (our_decoder(ours_with, gamma), theirs(gamma))))
        if peer.first is not None:
            rows += _prompts_against(setup, name, peer.first)
    ours = str(setup.dtype).removeprefix("torch.")
    return [replace(row, note=f"{peer.what}, ours in {ours}; {row.note}") for row in rows]


def _prompts_against(
    setup: Bench, name: str, theirs: Callable[[Sequence[int]], tuple[float, list[int]]]
) -> list[BenchRow]:
    """Prompts up to their first token, in our engine and in another."""
    rows = []
    for length in [one for one in lengths_of(setup) if one in PEER_LENGTHS]:
        prompts = token_prompts(setup, length)

        def their_first(index: int, prompts: list[list[int]] = prompts) -> tuple[float, list[int]]:
            return theirs(prompts[index])

        decoders = partial(timed_first_token, setup, prompts), their_first
        row = row_of("h", f"a prompt of {length} tokens against {name}", setup, decoders, OF_A_LENGTH)
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
        helper = at_fixed_gamma(network_of(setup.draft.model), gamma)
        rows.append(
            row_of(
                "b", what, setup, (our_decoder(setup, gamma), generate_of_transformers(setup, assistant_model=helper))
            )
        )
    return rows


def _batches_against_generate(setup: Bench) -> list[BenchRow]:
    rows = []
    for size in setup.batches:
        what = f"autoregressive against generate, batch={size}"
        groups = groups_of(setup.prompts, size)
        decoders = batch_decoders(setup.target, network_of(setup.target), groups, size, setup.max_new_tokens)
        row = row_of("g", what, setup, decoders, len(groups))
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
        theirs = generate_of_transformers(setup, prompt_lookup_num_tokens=gamma, max_matching_ngram_size=MATCH)
        rows.append(row_of("c", what, setup, (our_decoder(_looking_up(setup), gamma), theirs)))
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


QUICK = "def"  # parts that are repeated if another process disturbed them
PARTS: dict[str, tuple[str, Callable[[Bench], list[BenchRow]]]] = {
    "a": ("generate", _against_generate),
    "b": ("assisted generation", _against_assisted),
    "c": ("prompt lookup", _against_lookup),
    "d": ("a step", _step_against_floor),
    "e": ("a pass", _inside_a_pass),
    "f": ("start, memory and growth", _growth),
    "g": ("batches", _batches_against_generate),
    "i": ("long prompts", over_prompt_lengths),
}
