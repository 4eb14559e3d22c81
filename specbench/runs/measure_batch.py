"""Decode groups of prompts in batches, with and without the draft, and return their raw records.

A group is several batches' worth of prompts that decode one after another in `batch` rows, first without the draft and
then with it, or the reverse: so both see the same machine, and prompts wait for rows that end.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from specbench.config import RunConfig
from specbench.decoding import Decoding, DecodingSpec, Trace, autoregress, speculate, together
from specbench.drafts import Draft, in_batch
from specbench.models import Batch
from specbench.records.schema import PromptRecord
from specbench.runs.build import Parts
from specbench.runs.core_time import CoreTime, between, core_times
from specbench.runs.measure_prompt import (
    CHECKED_PROMPTS,
    generator_for,
    greedy,
    is_proved_greedily,
    prompt_record,
    require_same,
    shortened,
)

BATCHES = 8  # of a group: few passes at its end have empty rows


@dataclass(frozen=True)
class Rows:
    """The target and the draft of a run, with room for `number` sequences at a time."""

    number: int
    target: Batch
    draft: Draft

    @staticmethod
    def of(parts: Parts, number: int) -> "Rows":
        """Raises UserError where the target or a model of the draft cannot be batched, or the rows do not fit."""
        return Rows(number, Batch.of(parts.target, number), in_batch(parts.draft, number))


def groups(places: Sequence[int], batch: int) -> Iterator[list[int]]:
    """`places` of prompts in the groups in which they decode, which an interruption does not change."""
    size = BATCHES * batch
    for number in sorted({place // size for place in places}):
        yield [place for place in places if place // size == number]


def warm_up_rows(config: RunConfig, parts: Parts, rows: Rows) -> None:
    """As `measure_prompt.warm_up`, in rows."""
    if config.warmup:
        decode_rows(config, parts, rows, shortened(config, parts), range(min(len(parts.prompts), rows.number)))
    if is_proved_greedily(config, parts):
        checked = range(min(len(parts.prompts), max(CHECKED_PROMPTS, rows.number)))
        found = decode_rows(config, parts, rows, greedy(config, parts), checked)
        for place, (baseline, ours) in zip(checked, found, strict=True):
            require_same(parts, place, baseline, ours)


def measure_group(config: RunConfig, parts: Parts, rows: Rows, places: Sequence[int]) -> list[PromptRecord]:
    """The raw record of each prompt of a group, as `measure_prompt` makes it of a single prompt."""
    before = core_times()
    found = decode_rows(config, parts, rows, parts.spec, places)
    load = between(before, core_times())
    share = None if load is None else CoreTime(load.ran_s / len(places), load.waited_s / len(places))
    return [
        prompt_record(config, parts, place, baseline, ours, share)
        for place, (baseline, ours) in zip(places, found, strict=True)
    ]


def decode_rows(
    config: RunConfig, parts: Parts, rows: Rows, spec: DecodingSpec, places: Sequence[int]
) -> list[tuple[Trace, Trace]]:
    """The baseline and the speculative decoding of each prompt. Which goes first alternates from group to group."""

    def baseline(place: int) -> Decoding:
        generator = generator_for(config.seed, place, "baseline", parts.device)
        return autoregress(rows.target, parts.prompts[place], spec, generator)

    def ours(place: int) -> Decoding:
        generator = generator_for(config.seed, place, "speculative", parts.device)
        return speculate(rows.target, rows.draft, parts.prompts[place], spec, generator)

    def decode(way: Callable[[int], Decoding]) -> list[Trace]:
        return together(map(way, places), rows.number, rows.target)

    if places[0] // (BATCHES * rows.number) % 2 == 0:
        first = decode(baseline)
        return list(zip(first, decode(ours), strict=True))
    second = decode(ours)
    return list(zip(decode(baseline), second, strict=True))
