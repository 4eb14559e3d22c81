"""Prediction errors: every (draft, gamma) is timed in short passes and decodes all prompts, interleaved.

A single process decodes each prompt with all candidates, interleaved with rounds of timed passes, so that a slower
machine affects prediction and measurement alike. The policies `auto` and `adaptive`, with a probe as in a run, are
compared with the best fixed gamma on the same prompts.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np

from specbench.algorithm.gamma import Constant, Gamma, policy_of
from specbench.analysis.costs.core_time import core_times, disturbed_by, waited_share
from specbench.analysis.costs.probe import already_collected
from specbench.choose.alpha import score
from specbench.choose.alpha_rows import alpha_rows
from specbench.choose.candidates import LoadedCandidate, Scored
from specbench.choose.heading import heading
from specbench.choose.settled import prepare
from specbench.choose.timed_passes import predictions, time_passes
from specbench.config.verbs import ChooseConfig
from specbench.environment import environment, time_stamp
from specbench.errors import UserError
from specbench.escaping import file_name
from specbench.experiment.drafting_plan import choose_gamma
from specbench.experiment.measure import baseline_of, prove_greedily, speculative_of, unexplained_difference
from specbench.experiment.run_parts import resolve
from specbench.experiment.runner import Progress, translated_errors
from specbench.loading.model_loader import locked_device
from specbench.records.choosing import Decoded, ErrorRow, Learning, PolicyRow, ValidateDocument
from specbench.records.decoded import Trace
from specbench.records.documents import write_document
from specbench.records.run_record import SCHEMA_VERSION
from specbench.records.timed_rounds import Round
from specbench.stats import Interval, over_rows, ratio, ratio_of_ratios

WARMUP = 2  # prompts that every candidate decodes untimed
Name = tuple[str, int | str]  # the candidate, and gamma or the policy; the baseline is BASELINE
BASELINE: Name = ("", 0)
Decode = Callable[[int], Callable[[], Trace]]  # prompt number -> what decodes it
Written = dict[Name, list[list[int]]]  # the completions of each


def all_decoders(scored: Scored, policies: dict[str, dict[str, Gamma]]) -> dict[Name, Decode]:
    """The baseline, every candidate at every gamma, and its policies: each decodes the prompt of a number."""
    first = scored.candidates[0].parts
    decoders: dict[Name, Decode] = {BASELINE: partial(baseline_of, first, first.spec)}
    for candidate in scored.candidates:
        fixed: dict[int | str, Gamma] = {gamma: Constant(gamma) for gamma in scored.gammas}
        for gamma, chosen in (fixed | dict(policies[candidate.name])).items():
            spec = replace(candidate.parts.spec, gamma=chosen)
            decoders[candidate.name, gamma] = partial(speculative_of, candidate.parts, spec)
    return decoders


def interleave(
    scored: Scored, decoders: dict[Name, Decode], progress: Progress
) -> tuple[dict[Name, Decoded], Written, list[Round]]:
    """Run every decoder on every prompt, `repeats` times, with rounds of timed passes spread between.

    Each repeat has another order, because neighbours change the time by a few percent, and the baseline as many turns
    as there are candidates, because its own time is part of each line. A draft that grows holds the sample's
    completions before the prompt, as it does in a run.
    """
    config, prompts = scored.config, len(scored.sample.texts)
    names = [name for name in decoders if name != BASELINE]
    rounds: list[Round] = []
    for index in range(min(WARMUP, prompts)):
        for decode in decoders.values():
            decode(index)()
    decoded = {name: Decoded.of(name, prompts) for name in decoders}
    written: Written = {name: [] for name in decoders}
    with already_collected():
        for number in range(total := config.repeats * prompts):
            index = number % prompts
            while len(rounds) < -(-(number + 1) * config.rounds // total):
                rounds += time_passes(scored, len(rounds), 1)
            scored.stores.before(index)
            seen = set[Name]()
            for name in _turns(names, np.random.default_rng([config.seed, number])):
                trace, first = decoders[name](index)(), number < prompts and name not in seen
                decoded[name].add(index, trace, first)
                if first:
                    written[name].append(trace.tokens)
                seen.add(name)
            progress.advance(number + 1, total)
    scored.stores.before(0)
    return decoded, written, rounds


def _turns(names: Sequence[Name], generator: np.random.Generator) -> list[Name]:
    """`names` in random order, and between them a turn of the baseline for each candidate, none after another."""
    order = [names[place] for place in generator.permutation(len(names))]
    turns: list[Name] = []
    for part in np.array_split(np.arange(len(order)), len({candidate for candidate, _ in names})):
        before = generator.integers(len(part))  # one of the part, so that something follows
        turns += [each for place in part for each in ([BASELINE] if place == part[before] else []) + [order[place]]]
    return turns


def prove(scored: Scored) -> None:
    """At T > 0, check the lossless candidates at T = 0 first, as a run does. Raises MachineError."""
    if scored.config.sampling.temperature > 0:
        for candidate in scored.candidates:
            if candidate.lossy is None:
                spec = replace(candidate.parts.spec, gamma=Constant(max(candidate.config.gammas)))
                prove_greedily(replace(candidate.parts, spec=spec))


def not_lossless(scored: Scored, written: Written) -> set[Name]:
    """The candidates that should be lossless and wrote, at T = 0, a completion that rounding does not explain."""
    if scored.config.sampling.temperature > 0:
        return set()
    own = written[BASELINE]
    lossless = {candidate.name: candidate.parts for candidate in scored.candidates if candidate.lossy is None}
    return {
        name
        for name, texts in written.items()
        if (parts := lossless.get(name[0])) is not None
        for index, (right, text) in enumerate(zip(own, texts, strict=True))
        if unexplained_difference(parts, index, right, text) is not None
    }


def same_texts(scored: Scored, written: Written) -> float | None:
    """The share of completions of lossless candidates that equal the target's; None at T > 0."""
    if scored.config.sampling.temperature > 0:
        return None
    lossless = {candidate.name for candidate in scored.candidates if candidate.lossy is None}
    own = written[BASELINE]
    theirs = [texts for (name, _), texts in written.items() if name in lossless]
    same = [a == b for texts in theirs for a, b in zip(own, texts, strict=True)]
    return sum(same) / len(same) if same else None


PROBED = "adaptive"  # auto uses the same probe
POLICIES = ("auto", "adaptive")


def prediction_error(configs: Sequence[ChooseConfig], progress: Progress) -> tuple[Path, ValidateDocument]:
    """Time passes and decode all prompts; write and return `validate/TARGET-TASK-T.json` in the results folder.

    `report.ranking.markdown` makes the table from it.

    Raises:
        UserError: `configs` have several temperatures, or a config cannot be measured.
        MachineError: the device, memory or disk does not suffice.
    """
    if len({config.sampling.temperature for config in configs}) > 1:
        raise UserError("sampling.temperature: a table of prediction errors is for one temperature; give one")
    resolved = resolve(configs[0])
    with locked_device(resolved.device, progress.say) as device, translated_errors(resolved):
        candidates = prepare([replace(config, device=str(device), gamma=PROBED) for config in configs], progress)
        scored = score(candidates, (), progress, max(candidates[0].config.gammas))
        gammas = {candidate.name: _policies(candidate, progress) for candidate in candidates}
        prove(scored)
        before = core_times()
        decoded, written, rounds = interleave(scored, all_decoders(scored, gammas), progress)
        waited = waited_share(before)
        wrong = not_lossless(scored, written)
    config, surroundings = scored.config, environment()
    measured_of = heading(config, surroundings, candidates[0].parts.engine)
    record: ValidateDocument = {
        "schema_version": SCHEMA_VERSION,
        **measured_of,
        "prompts": len(scored.sample.texts),
        "tokens": sum(map(len, scored.sample.texts)),
        "repeats": config.repeats,
        "rounds": rounds,
        "disturbed_by": disturbed_by(rounds, waited),
        "created": time_stamp(),
        "rows": _rows(scored, decoded, rounds, wrong),
        "policies": [row for one in candidates for row in _against_best(one, decoded, wrong, scored.groups)],
        "learning": _learning(scored, decoded),
        "alpha_rows": alpha_rows(scored, measured_of["hardware"]),
        "same_texts": same_texts(scored, written),
        "decoded": list(decoded.values()),
        "configs": [asdict(candidate.config) for candidate in candidates],
        "environment": surroundings,
        **scored.at_context(),
    }
    setting = f"-T{config.sampling.temperature:g}" + ("" if config.context is None else f"-c{config.context}")
    name = file_name(f"{record['target']}-{config.task.name}", setting)
    return write_document(Path(config.results) / "validate" / f"{name}.json", record), record


def _policies(candidate: LoadedCandidate, progress: Progress) -> dict[str, Gamma]:
    """auto and adaptive, as a run would choose them; from one probe for both, on prompts that are not decoded."""
    progress.say(f"probing for {candidate.name}")
    choice = choose_gamma(candidate.config, candidate.parts, progress.note)
    best = Constant(choice.probe[0]["gamma"]) if choice.probe else policy_of(choice)
    return dict(zip(POLICIES, (best, policy_of(choice)), strict=True))


def _times(baseline: Decoded, one: Decoded) -> list[tuple[float, int, float, int]]:
    return list(zip(baseline.decode_s, baseline.tokens, one.decode_s, one.tokens, strict=True))


def _rows(scored: Scored, decoded: dict[Name, Decoded], rounds: Sequence[Round], wrong: set[Name]) -> list[ErrorRow]:
    """Estimated and measured speedup of every candidate, and the prediction error.

    Candidates in `wrong` are not lossless and get no speedup; lossy candidates are marked, and their completions are
    not compared.
    """
    table, rows = predictions(scored, rounds), list[ErrorRow]()
    by_name = {candidate.name: candidate for candidate in scored.candidates}
    for one in sorted(table.ranked, key=lambda one: (list(by_name).index(one.draft), one.gamma)):
        candidate, did = by_name[one.draft], decoded[one.draft, one.gamma]
        times = _times(decoded[BASELINE], did)
        measured = over_rows(times, ratio_of_ratios, groups=scored.groups)
        rows.append(
            {
                **one.as_row(),
                **candidate.names(),
                "measured": measured,
                "error": table.error((one.draft, one.gamma), times),
                "alpha_decoded": _alpha_decoded(candidate, did, scored.groups),
                "lossless": (one.draft, one.gamma) not in wrong,
            }
        )
    return rows


def _alpha_decoded(candidate: LoadedCandidate, did: Decoded, groups: Sequence[int]) -> Interval | None:
    """Accepted over tested draft tokens, if that estimates alpha; otherwise None.

    It does under Algorithm 1 and for a draft that agrees equally at all positions: a block is tested as a whole, and a
    lossy rule accepts more than alpha.
    """
    if candidate.rule != "exact" or candidate.config.draft.falls_with_position:
        return None
    counts = list(zip(did.accepted, did.judged, strict=True))
    return over_rows(counts, ratio, scale="probability", groups=groups)


def _against_best(
    candidate: LoadedCandidate, decoded: dict[Name, Decoded], wrong: set[Name], groups: Sequence[int]
) -> list[PolicyRow]:
    """Time per token of the fastest fixed gamma, divided by each policy's and other gamma's, on the same prompts."""
    own = {gamma: one for (name, gamma), one in decoded.items() if name == candidate.name}
    fixed = {gamma: sum(one.decode_s) / sum(one.tokens) for gamma, one in own.items() if isinstance(gamma, int)}
    best = min(fixed, key=lambda gamma: fixed[gamma])
    rows = list[PolicyRow]()
    for gamma, one in own.items():
        faster = over_rows(_times(own[best], one), ratio_of_ratios, groups=groups)
        measured = over_rows(_times(decoded[BASELINE], one), ratio_of_ratios, groups=groups)
        rows.append({
            "candidate": candidate.name, "gamma": gamma, "measured": measured, "best": best,
            "against_best": faster, "lossless": (candidate.name, gamma) not in wrong,
        })  # fmt: skip
    return rows


def _learning(scored: Scored, decoded: dict[Name, Decoded]) -> Learning:
    """Seconds to estimate alpha of all drafts: by scoring, and by decoding once with each draft and gamma."""
    fixed = [one for name, one in decoded.items() if isinstance(name[1], int) and name != BASELINE]
    return {
        "drafts": len(scored.agreement),
        "score_s": scored.seconds,
        "decode_s": sum(sum(one.decode_s) + sum(one.start_s) for one in fixed) / scored.config.repeats,
    }
