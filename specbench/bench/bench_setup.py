"""The setup of a benchmark, and the rows that compare two decoders of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from specbench.algorithm.decoding import DecodingSpec, autoregressive, speculative
from specbench.algorithm.draft import Draft
from specbench.bench.baselines import generate
from specbench.bench.peers import Peer, Work
from specbench.bench.timing import Decoder, Timing, in_turn, times_faster
from specbench.engine.out_of_memory import is_out_of_memory
from specbench.engine.session import Model, Prompt
from specbench.errors import first_line
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


def network_of(model: Any) -> Any:
    """The `transformers` network of a model."""
    return model.network


def our_decoder(setup: Bench, gamma: int | None) -> Decoder:
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


def generate_of_transformers(setup: Bench, **keywords: Any) -> Decoder:
    """The target decoded by `generate`, to which `keywords` go."""

    def decode(index: int) -> tuple[float, list[int]]:
        began = setup.target.now()
        tokens = generate(network_of(setup.target), setup.prompts[index], setup.max_new_tokens, **keywords)
        return setup.target.now() - began, tokens

    return decode


class _Fails(Exception):
    """`transformers` cannot decode a prompt: it does not support some models that we run."""


def _failing_as_theirs(decode: Decoder) -> Decoder:
    """`decode` of `transformers`; its faults are marked as theirs. A fault of ours ends the benchmark."""

    def attempt(index: int) -> tuple[float, list[int]]:
        try:
            return decode(index)
        except (RuntimeError, ValueError, IndexError, AttributeError, TypeError) as error:
            if is_out_of_memory(error):
                raise
            raise _Fails(first_line(error, 100)) from error

    return attempt


def row_of(
    part: str, what: str, setup: Bench, decoders: tuple[Decoder, Decoder], prompts: int | None = None
) -> BenchRow:
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
