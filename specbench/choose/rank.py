"""Choice of draft and gamma: alpha from the cached sample, costs from timed probes, a ranking, and its verification.

Each of the best candidates is verified by a real run, with the same record as `specbench run` with the same keys. For
another engine (`Engines`) its own parts are timed, and whole completions verify the ranking.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

from specbench.analysis.costs.core_time import disturbed_by, least_disturbed
from specbench.analysis.costs.costs import step_seconds
from specbench.analysis.first_token import Starts
from specbench.analysis.forecast.predict import Grown, Prediction, Predictions
from specbench.choose.alpha import score
from specbench.choose.alpha_rows import alpha_rows
from specbench.choose.candidates import LoadedCandidate, Scored, as_shaped, with_trees, within
from specbench.choose.heading import heading
from specbench.choose.inner_drafts import of_cascades, rank_inner_drafts
from specbench.choose.needs import lines, of_recommend
from specbench.choose.reasons import NOT_CONCLUDED, best_lossless, label, of_batches, of_lossy, reasons
from specbench.choose.settled import prepare, resolve_all
from specbench.choose.skips import with_skips
from specbench.choose.starts import of_starts, time_starts
from specbench.choose.timed_passes import predictions, timed
from specbench.config.model import name_of
from specbench.config.schema import RunConfig
from specbench.config.verbs import ChooseConfig, as_run
from specbench.engine.experts import Experts
from specbench.environment import environment, hardware
from specbench.errors import UserError
from specbench.escaping import file_name
from specbench.experiment.identity import NOT_IDENTITY, identify
from specbench.experiment.memory import total
from specbench.experiment.run_parts import resolve
from specbench.experiment.runner import Progress, execute, translated_errors
from specbench.files import json_digest
from specbench.interop.serving.assisted import AssistedGeneration, engine_name
from specbench.interop.serving.engine import Engine, prove, time_engine
from specbench.loading import cost_is_simulated
from specbench.loading.model_loader import locked_device
from specbench.methods.model.draft import ModelDraft
from specbench.methods.quantised.config import QuantisedConfig
from specbench.nouns import with_noun
from specbench.records.choosing import (
    CandidateNames,
    MemoryOfCandidate,
    RankedRow,
    RecommendDocument,
    Verified,
    WithPrompts,
)
from specbench.records.documents import saved_document, write_document
from specbench.records.marks import why_unproved
from specbench.records.run_record import SCHEMA_VERSION
from specbench.records.timed_rounds import Round
from specbench.text.translation import TranslatedModel

SHORT_S = 5.0  # a recommendation that takes no longer is not forecast
Engines = Mapping[str, Engine]  # by the candidate's name
Making = Callable[[Sequence[LoadedCandidate]], Engines]


def assisted_generation(candidates: Sequence[LoadedCandidate]) -> Engines:
    """transformers' assisted generation with the draft of each candidate.

    Raises UserError for a candidate that it cannot run.
    """
    found: dict[str, Engine] = {}
    for one in candidates:
        parts, draft = one.parts, one.parts.draft
        if not isinstance(draft, ModelDraft) or isinstance(draft.model, TranslatedModel):
            raise UserError(
                f"draft={one.draft}: engine=transformers is timed with drafts that are models, of the target's "
                "vocabulary; leave this one out"
            )
        if one.rule != "exact":
            raise UserError(f"accept={one.rule}: transformers accepts by Algorithm 1; leave accept=exact")
        if (processing := one.config.sampling.processing()) is not None:
            raise UserError(f"sampling ({processing}): engine=transformers is timed without it; leave it out")
        found[one.name] = AssistedGeneration(
            parts.target.network, draft.model.network, parts.spec.sampling, one.config.max_new_tokens,
            parts.target.now,
        )  # fmt: skip
    return found


def rounds_of(engines: Engines, scored: Scored) -> list[Round]:
    """Timed steps and passes of the engines, at places spread over the sample."""
    config = scored.config
    return time_engine(engines, scored.gammas, scored.texts, config.max_new_tokens, config.rounds, config.seed)


def verify(engines: Engines, best: Sequence[Prediction], scored: Scored) -> list[Verified]:
    """The engine's measured speedup over the prompts of the sample, for each of the `best`, with the prediction."""
    prompts = [prompt for prompt, _ in scored.texts]
    names = {one.name: one.names() for one in scored.candidates}
    asked = [(one.draft, one.gamma) for one in best]
    proofs, waited = least_disturbed(lambda: prove(engines, asked, prompts, scored.config.seed))
    signs = disturbed_by([], waited)
    rows = list[Verified]()
    for one in best:
        proof = proofs[one.draft, one.gamma]
        if (measured := proof.speedup) is None:
            raise UserError(
                f"{one.draft}: only {proof.equal_share:.0%} of the completions are as without a draft: no speedup"
            )
        row = _verified(one, names[one.draft], measured.value, measured.low, measured.high, signs)
        row["alike"] = proof.equal_share
        rows.append(row)
    return rows


def _verified(
    one: Prediction,
    names: CandidateNames,
    measured: float | None,
    low: float | None,
    high: float | None,
    signs: str | None,
) -> Verified:
    """A prediction beside the measured speedup; `signs` that other work disturbed it leave it without an error."""
    return {
        "draft": names["draft"], "accept": names["accept"], "lossy": names["lossy"], "candidate": names["candidate"],
        "gamma": one.gamma, "run_id": None, "reused": False, "estimated": one.estimated,
        "measured": measured, "measured_low": low, "measured_high": high,
        "off": one.estimated.value / measured - 1 if measured and not signs else None, "disturbed_by": signs,
        "tokens_per_pass": None, "alpha": None, "c": None, "verify_cost": None, "overhead": None,
    }  # fmt: skip


@dataclass(frozen=True)
class Recommendation:
    """The record's file and content, and the lines for the screen."""

    file: Path
    record: RecommendDocument


def recommend(configs: Sequence[ChooseConfig], progress: Progress, other: Making | None = None) -> Recommendation:
    """Rank every (draft, gamma) of `configs`, which differ only in draft and rule, and run the best `verify` for real.

    Args:
        configs: the candidates.
        progress: receives the steps.
        other: makes another engine to recommend for; None for our own loop.

    Raises:
        UserError: several temperatures, or a config that cannot be measured.
        MachineError: the device, memory, disk or hub does not suffice.
    """
    if len({config.sampling.temperature for config in configs}) > 1:
        raise UserError("sampling.temperature: a recommendation is for one temperature; give one")
    resolved = resolve(configs[0])
    with locked_device(resolved.device, progress.say) as device, translated_errors(resolved):
        placed = with_skips([replace(config, device=str(device)) for config in configs], progress)
        configs = [replace(config, draft=one.draft) for config, one in zip(configs, placed, strict=True)]
        asked = resolve_all(placed, lambda line: None)
        named = [] if other is None else [engine_name()]
        if not resolved.force and (saved := _saved(asked, configs[0].limit, named)) is not None:
            progress.note(f"{saved.file}: measured before with the same keys; force=true measures again")
            return saved
        needs = of_recommend(configs)
        if needs.seconds is None or needs.seconds > SHORT_S:
            progress.note(f"{needs.work}; {lines(needs)[-1]}")
        # Inner drafts are timed one text at a time, so that they say nothing about a batch.
        inner_rankings = rank_inner_drafts(placed, progress) if other is None and placed[0].batches == [1] else {}
        prepared = prepare(placed, progress)
        fitting, left_out = within(placed[0].memory, prepared)
        configs = [config for config, one in zip(configs, prepared, strict=True) if one in fitting]
        scored, trees = with_trees(score(fitting, (), progress, max(placed[0].gammas), resumes=True))
        if trees and other is not None:
            raise UserError("tree: only our own loop drafts trees; leave tree=none for another engine")
        engines = None if other is None else other(scored.candidates)
        of_trees = f" and of {len(trees)} trees" if trees else ""
        progress.say(f"timing passes at γ={','.join(str(g) for g in scored.config.gammas)}{of_trees}")
        batches = sorted(set(scored.config.batches))
        if batches != [1] and (trees or engines is not None):
            raise UserError("batch: trees and other engines are ranked only for batch=1; leave batch= out")
        waited: float | None = None
        if engines is None:
            rounds_at = timed_at(batches, scored, trees, progress)
        else:
            found, waited = least_disturbed(lambda: rounds_of(engines, scored))
            rounds_at = {1: found}
        config = scored.config
        tables = {batch: predictions(scored, rounds, trees, batch) for batch, rounds in rounds_at.items()}
        table, rounds = tables[batches[0]], rounds_at[batches[0]]
        if not table.ranked:
            raise UserError(f"gammas={config.gammas}: completions are too short for a full pass; give smaller gammas")
        starts = time_starts(scored, step_seconds(rounds)) if engines is None and batches == [1] else {}
        cut_short = engines is None and (len(rounds_at) < len(batches) or len(rounds) < config.rounds)
        best = [] if cut_short else table.ranked[: config.verify]
        if engines is not None and best:
            progress.say(f"decoding with γ={','.join(str(one.gamma) for one in best)} and without a draft")
        verified, unchecked = list[Verified](), None
        try:
            verified = verify(engines, best, scored) if engines is not None and best else []
        except KeyboardInterrupt:  # the ranking is not lost by it
            unchecked = _unchecked(0, len(best))
    candidates = {one.name: one for one in scored.candidates}
    if engines is None and not cut_short:  # each run takes the device for itself
        # The proof is on the prompts of the prediction, unless the user names how many.
        limit = configs[0].limit or len(scored.sample.texts)
        proved = {
            name: as_shaped(replace(config, limit=limit), trees, name)
            for name, config in zip(candidates, configs, strict=True)
        }
        checks = [(batch, one) for batch, ranked in tables.items() for one in ranked.ranked[: config.verify]]
        for batch, one in checks:
            try:
                verified.append(_verify(proved[one.draft], one, candidates[one.draft].names(), progress, batch))
            except KeyboardInterrupt:
                unchecked = _unchecked(len(verified), len(checks))
                break
    surroundings = environment()
    alphas = alpha_rows(scored, hardware(surroundings, config.device))
    total_variations = {
        name: row["total_variation"] for name, row in zip(candidates, alphas, strict=True) if "total_variation" in row
    }
    engine = scored.candidates[0].parts.engine if engines is None else next(iter(engines.values())).name
    signs = disturbed_by([one for rounds in rounds_at.values() for one in rounds], waited)
    concluded = [
        *reasons(table),
        *(of_starts(table.ranked, starts) if starts else []),
        *of_experts(table, rounds, scored),
        *of_cascades(table, inner_rankings),
        *of_batches(tables),
        *best_lossless(table, total_variations),
    ]
    memory = {(name, batch): _memory(one, batch) for name, one in candidates.items() for batch in tables}
    rows: list[RankedRow] = [
        {
            **one.as_row(),
            **candidates[one.draft].names(),
            "batch": batch,
            **memory[one.draft, batch],
            **_of_starts(one, starts),
        }
        for batch, ranked in tables.items()
        for one in ranked.ranked
    ]
    record: RecommendDocument = {
        "schema_version": SCHEMA_VERSION,
        "recommend_id": _id(asked, [] if engines is None else [engine]),
        **heading(config, surroundings, engine),
        "encoder_decoder": bool(scored.candidates[0].parts.prompts[0].source),
        "rows": rows,
        "reasons": [
            *(concluded if signs is None else [NOT_CONCLUDED]),
            *of_simulated_costs(scored.candidates),
            *of_lossy(total_variations),
            *left_out,
            *([f"interrupted: ranked by {len(rounds)} of {config.rounds} rounds"] if cut_short else []),
            *([unchecked] if unchecked else []),
        ],
        "verified": verified,
        "alpha_rows": alphas,
        "target_step_s": step_seconds(rounds),
        "sample_s": scored.sample.seconds,
        "texts_reused": scored.sample.reused,
        "score_s": scored.seconds,
        "rounds": list(rounds),
        "disturbed_by": signs,
        "configs": [asdict(candidate.config) for candidate in scored.candidates],
        "environment": surroundings,
        # What was cut short is not taken up again.
        "asked": "" if cut_short or unchecked else _asked(asked, configs[0].limit),
        "interrupted": cut_short or unchecked is not None,
        **scored.at_context(),
    }
    file = write_document(_file(config.results, record["recommend_id"]), record)
    if not record["interrupted"]:
        scored.forget()
    return Recommendation(file, record)


def timed_at(
    batches: Sequence[int], scored: Scored, trees: Mapping[str, Grown], progress: Progress
) -> dict[int, list[Round]]:
    """Timed passes by batch; after Ctrl-C those that are done, if a ranking can be made from them."""
    found = dict[int, list[Round]]()
    for batch in batches:
        try:
            found[batch] = timed(scored, batch, progress, trees)
        except KeyboardInterrupt:
            if not found:
                raise
            break
        if len(found[batch]) < scored.config.rounds:
            break
    return found


def of_experts(table: Predictions, rounds: Sequence[Round], scored: Scored) -> list[str]:
    """How many experts the best candidate's full passes read; nothing for a target without experts, or for a batch."""
    best = table.ranked[0]
    experts: Experts | None = getattr(scored.candidates[0].parts.target, "experts", None)
    full = [one for seen in rounds for one in seen.by_key[best.draft, best.gamma] if one.drafted == best.gamma]
    read = [one.experts for one in full if one.experts is not None]
    if experts is None or not read:
        return []
    times = fmean(read) / (experts.layers * experts.per_token)
    share = experts.of_a_token * 2 / scored.candidates[0].parts.target.operations
    return [
        f"experts: verification by {label(best)} reads {times:.1f} times the experts of a step, {share:.0%} of whose "
        f"weights they are: v = {best.cost.verify_cost:.2f}; a smaller γ reads fewer"
    ]


def of_simulated_costs(candidates: Sequence[LoadedCandidate]) -> list[str]:
    """A sentence about each candidate whose c, and so its place in the ranking, does not hold for quantised weights."""
    return [
        f"{one.name}: its rounded weights are read at full size, so its c and its speedups are not what "
        f"{part.bits}-bit kernels would give; its α is (docs/drafts.md#quantised)"
        for one in candidates
        for part in one.config.draft.levels()
        if isinstance(part, QuantisedConfig) and cost_is_simulated(part, one.parts.engine)
    ]


def _unchecked(done: int, of: int) -> str:
    """What Ctrl-C leaves of the checks of a ranking."""
    return f"interrupted: {done} of {with_noun(of, 'check')} of the ranking done"


def _of_starts(one: Prediction, starts: Mapping[str, Starts]) -> WithPrompts:
    """The speedup of whole requests, if reading the prompts was timed."""
    if one.draft not in starts:
        return {}
    found = starts[one.draft]
    return {
        "end_to_end": found.end_to_end(one.estimated.value), "prompt_tokens": found.tokens,
        "target_start_s": found.target_s, "draft_start_s": found.draft_s,
    }  # fmt: skip


def _memory(candidate: LoadedCandidate, batch: int) -> MemoryOfCandidate:
    """The bytes of target and draft at this batch, and their ratio to the target's bytes."""
    found = candidate.memory(batch)
    return {"memory_bytes": total(found), "memory_ratio": total(found) / total(found, "target")}


def _id(configs: Sequence[ChooseConfig], engine: list[str]) -> str:
    """The id of a recommendation among `configs`; `engine` names one that is not ours."""
    first = configs[0]
    ids = [identify(as_run(config, first.gammas[0])) for config in configs]
    batches = sorted(set(first.batches))
    more: list[object] = [*engine, *([batches] if batches != [1] else []), *([first.memory] if first.memory else [])]
    more += [first.resamples] if first.resamples != RunConfig.resamples else []
    digest = json_digest([ids, first.tokens, first.gammas, first.rounds, *more])
    return file_name(f"{name_of(first.target)}-{first.task.name}", f"-T{first.sampling.temperature:g}-{digest}")


def _asked(configs: Sequence[ChooseConfig], limit: int | None) -> str:
    """A digest of all keys that change a recommendation, and of the files that they name; `limit` as it was given."""
    keys = [
        {
            name: value
            for name, value in asdict(config).items()
            if name not in NOT_IDENTITY and not (name in ("memory", "context") and value is None)  # older than these
        }
        for config in configs
    ]
    return json_digest([keys, limit, [identify(as_run(config)) for config in configs]], 16)


def _saved(configs: Sequence[ChooseConfig], limit: int | None, engine: list[str]) -> Recommendation | None:
    """The saved recommendation of the same keys, files and environment; None if there is none, or it was disturbed."""
    file = _file(configs[0].results, _id(configs, engine))
    here = environment()
    here["threads"] = configs[0].threads or here["threads"]  # as the run sets them
    record: RecommendDocument | None = saved_document(file, RecommendDocument)
    if record is None:
        return None
    same = record.get("asked") == _asked(configs, limit) and record["environment"] == here
    signs = [record.get("disturbed_by"), *(one["disturbed_by"] for one in record["verified"])]
    return Recommendation(file, record) if same and not any(signs) else None


def _file(results: str, recommend_id: str) -> Path:
    return Path(results) / "recommend" / f"{recommend_id}.json"


def _verify(config: ChooseConfig, one: Prediction, names: CandidateNames, progress: Progress, batch: int) -> Verified:
    """A real run of a candidate and gamma at this batch size, with its prediction."""
    progress.say(f"running {label(one)}")
    result = execute(as_run(config, None if one.tree else one.gamma, batch), progress)
    summary = result.record["summary"]
    measured, low, high = summary["speedup_measured"], summary["speedup_low"], summary["speedup_high"]
    row = _verified(one, names, measured, low, high, summary.get("disturbed_by"))
    return row | {
        "batch": batch, "tree": one.tree, "run_id": result.record["run_id"], "reused": result.reused,
        "unproved": why_unproved(dict(summary)), "tokens_per_pass": summary["tokens_per_pass"],
        "alpha": summary["alpha"], "c": summary["c"], "verify_cost": summary["verify_cost"],
        "overhead": summary["overhead"],
    }  # fmt: skip
