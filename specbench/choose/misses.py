"""Predictions held to account: every (draft, gamma) is timed in short passes and decodes all prompts, in turn.

One process, one after the other on each prompt, and rounds of timed passes in between, so that a machine that slows
down slows the prediction and the proof alike. Beside the fixed gammas decode the two policies that choose by themselves
(`auto`, `adaptive`), from a probe as in a run, to be compared with the best fixed one on the same prompts.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specbench.choose.alpha import Scored, alpha_rows, prepare, score
from specbench.choose.recommend import plain, predictions, time_passes
from specbench.choose.ways import Entry
from specbench.config import ChooseConfig
from specbench.decoding import Trace, autoregressive, speculative
from specbench.environment import environment, hardware
from specbench.errors import UserError
from specbench.files import write_atomically
from specbench.gamma import Constant, Gamma
from specbench.measure.intervals import bootstrap, ratio, ratio_of_ratios
from specbench.measure.probe import Round
from specbench.models.load import name_of
from specbench.run import Progress
from specbench.run.build import resolve
from specbench.run.claim import claimed
from specbench.run.gamma import policy, settle
from specbench.run.pair import generator_for, sampling_of
from specbench.run.told import told_by_key

SCHEMA = 1
POLICIES = ("auto", "adaptive")
WARMUP = 2  # prompts that every way decodes before the clock starts
Name = tuple[str, int | str]  # the way, and gamma or the policy; the baseline is BASELINE
BASELINE: Name = ("", 0)
Decode = Callable[[int], Trace]


@dataclass
class Decoded:
    """What one way did with each prompt, over all repeats: seconds, tokens, and of the first repeat how many drafted
    tokens were accepted of how many that were judged."""

    decode_s: list[float]
    start_s: list[float]
    tokens: list[int]
    accepted: list[int]
    judged: list[int]
    texts: list[list[int]] = field(default_factory=list)

    @classmethod
    def of(cls, prompts: int) -> "Decoded":
        return cls([0.0] * prompts, [0.0] * prompts, [0] * prompts, [0] * prompts, [0] * prompts)

    def add(self, index: int, trace: Trace, first: bool) -> None:
        self.decode_s[index] += trace.decode_s
        self.start_s[index] += trace.start_s
        self.tokens[index] += len(trace.tokens)
        if first:
            self.texts.append(trace.tokens)
            self.accepted[index] += sum(p.accepted for p in trace.passes)
            # Not what was drafted behind the end of the text: nothing was rejected before it.
            self.judged[index] += sum(min(p.emitted, p.drafted) for p in trace.passes)


def misses(configs: Sequence[ChooseConfig], progress: Progress) -> tuple[Path, dict[str, Any]]:
    """Time and decode; write `misses.json` into the results folder, and return it. The table is `report.misses`."""
    if len({config.sampling.temperature for config in configs}) > 1:
        raise UserError("sampling.temperature: a table of misses is for one temperature; give one")
    resolved = resolve(configs[0])
    with claimed(resolved.device, progress.say) as device, told_by_key(resolved):
        entries = prepare([replace(config, device=str(device)) for config in configs], progress)
        scored = score(entries, (), progress)
        gammas = {entry.name: _policies(entry, progress) for entry in entries}
        decoded, rounds = in_turn(scored, _ways(scored, gammas), progress)
    config, surroundings = scored.config, environment()
    where = hardware(surroundings, config.device)
    record = {
        "schema": SCHEMA,
        "target": name_of(config.target),
        "task": config.task.name,
        "temperature": config.sampling.temperature,
        "dtype": config.dtype,
        "hardware": where,
        "engine": entries[0].parts.engine,
        "prompts": len(scored.sample.texts),
        "tokens": sum(map(len, scored.sample.texts)),
        "repeats": config.repeats,
        "rounds": [plain(one) for one in rounds],
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": _rows(scored, decoded, rounds),
        "policies": [row for entry in entries for row in _against_best(entry, decoded)],
        "learning": _learning(scored, decoded),
        "alpha_rows": alpha_rows(scored, where),
        "same_texts": _same_texts(scored, decoded),
        "decoded": [{"way": way, "gamma": gamma, **_plain(one)} for (way, gamma), one in decoded.items()],
        "configs": [asdict(entry.config) for entry in entries],
        "environment": surroundings,
    }
    file = Path(config.results) / "misses.json"
    write_atomically(file, json.dumps(record, ensure_ascii=False) + "\n")
    return file, record


def _policies(entry: Entry, progress: Progress) -> dict[str, Gamma]:
    """auto and adaptive, as a run would settle them; from one probe for both."""
    progress.say(f"probing for {entry.name}")
    settled = settle(replace(entry.config, gamma="adaptive"), entry.parts)
    best = settled["probe"][0]["gamma"] if settled["probe"] else settled["gamma"]
    return dict(zip(POLICIES, (Constant(best), policy(settled)), strict=True))


def _ways(scored: Scored, policies: dict[str, dict[str, Gamma]]) -> dict[Name, Decode]:
    """The baseline, every way at every gamma, and its policies: prompt number to trace."""
    config, sampling = scored.config, sampling_of(scored.config)

    def baseline(index: int) -> Trace:
        parts = scored.entries[0].parts
        return autoregressive(
            parts.target, parts.prompts[index], sampling=sampling, max_new_tokens=config.max_new_tokens,
            generator=generator_for(config.seed, index, "baseline", parts.device),
        )  # fmt: skip

    def decoding(entry: Entry, gamma: Gamma) -> Decode:
        def decode(index: int) -> Trace:
            parts, picked = entry.parts, entry.picked
            return speculative(
                parts.target, parts.draft, parts.prompts[index],
                gamma=gamma, sampling=sampling, max_new_tokens=config.max_new_tokens,
                generator=generator_for(config.seed, index, "speculative", parts.device),
                accept=picked.accept, compared=picked.compared,
            )  # fmt: skip

        return decode

    found: dict[Name, Decode] = {BASELINE: baseline}
    for entry in scored.entries:
        fixed: dict[int | str, Gamma] = {gamma: Constant(gamma) for gamma in sorted(set(config.gammas))}
        for gamma, chosen in (fixed | dict(policies[entry.name])).items():
            found[entry.name, gamma] = decoding(entry, chosen)
    return found


def in_turn(scored: Scored, ways: dict[Name, Decode], progress: Progress) -> tuple[dict[Name, Decoded], list[Round]]:
    """Every way on every prompt, `repeats` times, who goes first moving on; rounds of timed passes spread between."""
    config, prompts = scored.config, len(scored.sample.texts)
    names = list(ways)
    rounds: list[Round] = []
    for index in range(min(WARMUP, prompts)):
        for decode in ways.values():
            decode(index)
    decoded = {name: Decoded.of(prompts) for name in names}
    for number in range(total := config.repeats * prompts):
        index = number % prompts
        while len(rounds) < -(-(number + 1) * config.rounds // total):
            rounds += time_passes(scored, len(rounds), 1)
        first = number % len(names)
        for name in names[first:] + names[:first]:
            decoded[name].add(index, ways[name](index), first=number < prompts)
        progress.advance(number + 1, total)
    return decoded, rounds


def _times(baseline: Decoded, one: Decoded) -> list[tuple[float, int, float, int]]:
    return list(zip(baseline.decode_s, baseline.tokens, one.decode_s, one.tokens, strict=True))


def _rows(scored: Scored, decoded: dict[Name, Decoded], rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Calibrated, measured and the miss of every way and fixed gamma."""
    config, table, rows = scored.config, predictions(scored, rounds), []
    by_name = {entry.name: entry for entry in scored.entries}
    for one in sorted(table.ranked, key=lambda one: (list(by_name).index(one.draft), one.gamma)):
        entry, did = by_name[one.draft], decoded[one.draft, one.gamma]
        times = _times(decoded[BASELINE], did)
        measured = bootstrap(times, ratio_of_ratios, config.resamples, config.seed)
        by_decoding = bootstrap(list(zip(did.accepted, did.judged, strict=True)), ratio, config.resamples, config.seed)
        rows.append(
            one.row()
            | {"draft": entry.draft, "accept": entry.rule, "lossy": entry.lossy is not None, "way": entry.name}
            | {"measured": asdict(measured), "miss": asdict(table.miss((one.draft, one.gamma), times))}
            | {"alpha_decoded": asdict(by_decoding)}
        )
    return rows


def _against_best(entry: Entry, decoded: dict[Name, Decoded]) -> list[dict[str, Any]]:
    """Each policy, and each other fixed gamma, against the fixed gamma that took the least time: its time per token
    over theirs, on the same prompts."""
    config = entry.config
    of_entry = {gamma: one for (way, gamma), one in decoded.items() if way == entry.name}
    fixed = {gamma: sum(one.decode_s) / sum(one.tokens) for gamma, one in of_entry.items() if isinstance(gamma, int)}
    best = min(fixed, key=lambda gamma: fixed[gamma])
    rows = []
    for gamma, one in of_entry.items():
        faster = bootstrap(_times(of_entry[best], one), ratio_of_ratios, config.resamples, config.seed)
        measured = bootstrap(_times(decoded[BASELINE], one), ratio_of_ratios, config.resamples, config.seed)
        compared = {"measured": asdict(measured), "best": best, "against_best": asdict(faster)}
        rows.append({"way": entry.name, "gamma": gamma, **compared})
    return rows


def _learning(scored: Scored, decoded: dict[Name, Decoded]) -> dict[str, float]:
    """Seconds that alpha of all drafts took: scoring the sample, and decoding its prompts once with each and gamma."""
    fixed = [one for name, one in decoded.items() if isinstance(name[1], int) and name != BASELINE]
    return {
        "drafts": len(scored.found),
        "score_s": scored.seconds,
        "decode_s": sum(sum(one.decode_s) + sum(one.start_s) for one in fixed) / scored.config.repeats,
    }


def _same_texts(scored: Scored, decoded: dict[Name, Decoded]) -> float | None:
    """The share of texts of lossless ways that are the target's own; at T > 0 there is nothing to compare."""
    if scored.config.sampling.temperature > 0:
        return None
    lossless = {entry.name for entry in scored.entries if entry.lossy is None}
    own = decoded[BASELINE].texts
    same = [a == b for (way, _), one in decoded.items() if way in lossless for a, b in zip(own, one.texts, strict=True)]
    return sum(same) / len(same) if same else None


def _plain(one: Decoded) -> dict[str, Any]:
    values = asdict(one)
    del values["texts"]
    return values
