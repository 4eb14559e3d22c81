"""Long prompts: the first token, and passes after them, over lengths."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from specbench.analysis.costs.roofline import roofline, weight_bytes
from specbench.bench.bench_setup import Bench, network_of, row_of
from specbench.bench.parts import bytes_cached, over_tokens
from specbench.bench.timing import Decoder, peak_growth
from specbench.engine.session import Model, Prompt
from specbench.records.timed_documents import BenchRow

PROMPT_LENGTHS = (128, 512, 2048, 8192)  # tokens
PEER_LENGTHS = (512, 2048)  # of these, for which a server of another engine has room
OF_A_LENGTH = 2  # prompts


def over_prompt_lengths(setup: Bench) -> list[BenchRow]:
    """Prompts of several lengths up to their first token, in our engine and in `transformers`' own forward pass."""
    network = network_of(setup.target)
    if network.config.is_encoder_decoder:
        return [BenchRow("i", "prompts up to the first token", unit="", note="not measured: the target has an encoder")]
    if not lengths_of(setup):
        why = f"not measured: the target has {setup.target.longest} positions"
        return [BenchRow("i", "prompts up to the first token", unit="", note=why)]
    rows = []
    for length in lengths_of(setup):
        prompts = token_prompts(setup, length)
        memory = peak_growth(lambda tokens=prompts[0]: _first_token(setup.target, tokens))  # type: ignore[misc]
        row = row_of("i", f"a prompt of {length} tokens", setup, _reading(setup, network, prompts), OF_A_LENGTH)
        note = row.note if memory is None else f"{row.note}; ours took {memory / 2**20:.0f} MiB beside the weights"
        more = {} if row.ours is None else {"prefill_per_s": 1000 * length / row.ours}
        rows.append(replace(row, unit="ms" if row.unit else "", note=note, more=more))
    return rows + _over_contexts(setup, prompts[0], lengths_of(setup, max(VERIFIED)))


def lengths_of(setup: Bench, more: int = 0) -> list[int]:
    """The lengths of `PROMPT_LENGTHS` for which the target has positions, and for so many tokens more."""
    longest = setup.target.longest or max(PROMPT_LENGTHS)
    return [one for one in PROMPT_LENGTHS if one + more <= longest]


def token_prompts(setup: Bench, length: int) -> list[list[int]]:
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

    return partial(timed_first_token, setup, prompts), theirs


def timed_first_token(setup: Bench, prompts: Sequence[list[int]], index: int) -> tuple[float, list[int]]:
    """Our seconds up to the first token after a prompt, and the token."""
    began = setup.target.now()
    token = _first_token(setup.target, prompts[index])
    return setup.target.now() - began, [token]


def _first_token(target: Model, tokens: list[int]) -> int:
    """The likeliest token after a prompt."""
    return int(target.start(Prompt((), tuple(tokens))).extend(tokens[-1:])[0].argmax())
