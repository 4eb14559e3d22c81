"""Decode groups of prompts in batches, with and without the draft, and return their raw records."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from specbench.algorithm.batching import together
from specbench.algorithm.decoding import Decoding, DecodingSpec, autoregress, speculate
from specbench.algorithm.draft import Draft
from specbench.analysis.costs.core_time import CoreTime, between, core_times
from specbench.analysis.looks import BATCHES
from specbench.engine.batch import Batch
from specbench.experiment.machine import machine_of
from specbench.experiment.measure import (
    CHECKED_PROMPTS,
    alternated,
    copying,
    generator_for,
    greedy,
    is_proved_greedily,
    prompt_record,
    require_same,
    shortened,
    with_surroundings,
)
from specbench.experiment.meter import meter_of
from specbench.experiment.run_parts import Parts
from specbench.records.decoded import Trace
from specbench.records.prompt_sums import UsedRecord
from specbench.records.run_record import PromptRecord


@dataclass(frozen=True)
class BatchParts:
    """The target and the draft of a run, with room for `number` sequences at a time."""

    number: int
    target: Batch
    draft: Draft

    @staticmethod
    def of(parts: Parts, number: int) -> "BatchParts":
        """Raises UserError if the target or a model of the draft cannot be batched, or the rows do not fit."""
        return BatchParts(number, Batch.of(parts.target, number), parts.draft.in_batch(number))


def groups(places: Sequence[int], batch: int) -> Iterator[list[int]]:
    """`places` of prompts in the groups in which they decode, which an interruption does not change."""
    size = BATCHES * batch
    for number in sorted({place // size for place in places}):
        yield [place for place in places if place // size == number]


def warm_up_rows(parts: Parts, rows: BatchParts) -> None:
    """Decode a few prompts in rows before timing starts; at T > 0, also prove the loop at T = 0."""
    if parts.config.warmup:
        decode_rows(parts, rows, shortened(parts), range(min(len(parts.prompts), rows.number)))
    if is_proved_greedily(parts):
        checked = range(min(len(parts.prompts), max(CHECKED_PROMPTS, rows.number)))
        found = decode_rows(parts.sharing(), rows, greedy(parts), checked)
        for place, (baseline, ours) in zip(checked, found, strict=True):
            require_same(parts, place, baseline, ours)


def measure_group(parts: Parts, rows: BatchParts, places: Sequence[int]) -> list[PromptRecord]:
    """The raw record of each prompt of a group, as `measure_prompt` makes it of a single prompt."""
    machine, meter = machine_of(parts.device), meter_of(parts.device)
    states, before = [machine.state()], core_times()
    decode_baseline, decode_with_draft = decoders(parts, rows, parts.spec, places)
    (baselines, alone), (ours, both) = alternated(
        number_of(rows, places), partial(meter.measured, decode_baseline), partial(meter.measured, decode_with_draft)
    )
    load = between(before, core_times())
    states.append(machine.state())
    share = None if load is None else CoreTime(load.ran_s / len(places), load.waited_s / len(places))
    return [
        with_surroundings(
            prompt_record(parts, place, baseline, speculative, share),
            states,
            share_of(alone, len(places)),
            share_of(both, len(places)),
        )
        for place, baseline, speculative in zip(places, baselines, ours, strict=True)
    ]


def share_of(used: UsedRecord, prompts: int) -> UsedRecord:
    """The use of a group of so many prompts, for each of them: its part of the energy, and the group's peak."""
    return used | {"joules": used["joules"] / prompts} if "joules" in used else used


def decode_rows(parts: Parts, rows: BatchParts, spec: DecodingSpec, places: Sequence[int]) -> list[tuple[Trace, Trace]]:
    """The baseline and the speculative decoding of each prompt. Which goes first alternates from group to group."""
    both = alternated(number_of(rows, places), *decoders(parts, rows, spec, places))
    return list(zip(*both, strict=True))


def number_of(rows: BatchParts, places: Sequence[int]) -> int:
    """The number of a group."""
    return places[0] // (BATCHES * rows.number)


def decoders(
    parts: Parts, rows: BatchParts, spec: DecodingSpec, places: Sequence[int]
) -> tuple[Callable[[], list[Trace]], Callable[[], list[Trace]]]:
    """Decoders of the prompts at `places`: with the target alone, and speculatively."""

    def baseline(place: int) -> Decoding:
        generator = generator_for(parts.config.seed, place, "baseline", parts.device)
        return autoregress(rows.target, parts.prompts[place], spec, generator)

    def ours(place: int) -> Decoding:
        generator = generator_for(parts.config.seed, place, "speculative", parts.device)
        return speculate(rows.target, rows.draft, parts.prompts[place], spec, generator)

    def decode(begin: Callable[[int], Decoding]) -> list[Trace]:
        return together(map(begin, places), rows.number, rows.target)

    return copying(parts, "baseline", partial(decode, baseline)), copying(parts, "speculative", partial(decode, ours))
