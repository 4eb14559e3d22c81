"""Which draft and which gamma: alpha from the kept sample, costs from timed probes, a ranking, and its proof.

The proof is a real run of each of the best, whose record is that of `specbench run` with the same keys.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specbench.choose.alpha import Scored, alpha_rows, prepare, score
from specbench.choose.words import reasons
from specbench.config import ChooseConfig
from specbench.config.choose import as_run
from specbench.environment import environment, hardware
from specbench.errors import UserError
from specbench.files import write_atomically
from specbench.measure.costs import Round, probe, step_seconds
from specbench.measure.predict import Prediction, Predictions
from specbench.models import Prompt
from specbench.models.load import name_of
from specbench.run import Progress, execute
from specbench.run.build import resolve
from specbench.run.claim import claimed
from specbench.run.identity import draft_name, identify
from specbench.run.pair import sampling_of

SCHEMA = 1


@dataclass(frozen=True)
class Recommendation:
    """The record's file, and what a screen shows of it."""

    file: Path
    record: dict[str, Any]


def recommend(configs: Sequence[ChooseConfig], progress: Progress) -> Recommendation:
    """Rank every (draft, gamma) of `configs`, which differ in draft alone; run the `verify` best for real."""
    if len({config.sampling.temperature for config in configs}) > 1:
        raise UserError("sampling.temperature: a recommendation is for one temperature; give one")
    resolved = [resolve(config) for config in configs]
    with claimed(resolved[0].device, progress.say) as device:
        placed = [replace(config, device=str(device)) for config in configs]
        pairs = prepare(placed, progress)
        scored = score(pairs, (), progress)
        rounds = time_passes(scored, progress)
    config = scored.configs[0]
    table = Predictions(scored.found, rounds, config.max_new_tokens, config.resamples, config.seed)
    if not table.ranked:
        raise UserError(f"gammas={config.gammas}: the texts are too short for a full pass; give smaller ones")
    # The proof is on the prompts of the prediction, unless the user names how many.
    proved = [one if one.limit is not None else replace(one, limit=len(scored.sample.texts)) for one in configs]
    verified = [_verify(proved, one, progress) for one in table.ranked[: config.verify]]
    surroundings = environment()
    ids = [identify(as_run(one, one.gammas[0])) for one in scored.configs]
    digest = hashlib.sha256(json.dumps([ids, config.tokens, config.gammas, config.rounds]).encode()).hexdigest()[:8]
    record = {
        "schema": SCHEMA,
        "recommend_id": f"{name_of(config.target)}-{config.task.name}-T{config.sampling.temperature:g}-{digest}",
        "target": name_of(config.target),
        "task": config.task.name,
        "temperature": config.sampling.temperature,
        "dtype": config.dtype,
        "hardware": hardware(surroundings, config.device),
        "engine": scored.parts[0].engine,
        "rows": [one.row() for one in table.ranked],
        "reasons": reasons(table),
        "verified": verified,
        "alpha_rows": alpha_rows(scored, hardware(surroundings, config.device)),
        "target_step_s": step_seconds(rounds),
        "sample_s": scored.sample.seconds,
        "texts_reused": scored.sample.reused,
        "score_s": scored.seconds,
        "rounds": [_raw(one) for one in rounds],
        "configs": [asdict(one) for one in scored.configs],
        "environment": surroundings,
    }
    file = Path(config.results) / "recommend" / f"{record['recommend_id']}.json"
    write_atomically(file, json.dumps(record, ensure_ascii=False) + "\n")
    return Recommendation(file, record)


def time_passes(scored: Scored, progress: Progress) -> list[Round]:
    """Probes of every draft and gamma, inside texts spread over the sample."""
    config = scored.configs[0]
    progress.say(f"timing passes of {len(scored.names)} drafts at γ={','.join(str(g) for g in config.gammas)}")
    texts: list[tuple[Prompt, list[int]]] = list(zip(scored.parts[0].prompts, scored.sample.texts, strict=False))
    spread = [texts[index * len(texts) // config.rounds] for index in range(config.rounds)]
    return probe(
        scored.parts[0].target,
        {name: parts.draft for name, parts in zip(scored.names, scored.parts, strict=True)},
        sorted(set(config.gammas)),
        spread,
        sampling_of(config),
        max_new_tokens=config.max_new_tokens,
        rounds=config.rounds,
        seed=config.seed,
    )


def _verify(configs: Sequence[ChooseConfig], one: Prediction, progress: Progress) -> dict[str, Any]:
    """A real run of one (draft, gamma), beside what was predicted of it."""
    (config,) = [config for config in configs if draft_name(config) == one.draft]
    progress.say(f"running {one.draft} with γ={one.gamma}")
    result = execute(as_run(config, one.gamma), progress)
    summary = result.record["summary"]
    measured = summary["speedup_measured"]
    return {
        "draft": one.draft,
        "gamma": one.gamma,
        "run_id": result.record["run_id"],
        "reused": result.reused,
        "calibrated": asdict(one.calibrated),
        "measured": measured,
        "measured_low": summary["speedup_low"],
        "measured_high": summary["speedup_high"],
        "off": one.calibrated.value / measured - 1 if measured else None,
        "tokens_per_pass": summary["tokens_per_pass"],
        "alpha": summary["alpha"],
        "c": summary["c"],
        "verify_cost": summary["verify_cost"],
        "overhead": summary["overhead"],
    }


def _raw(one: Round) -> dict[str, Any]:
    """The times of a round, without the tokens that happened to be drafted."""
    return {
        "steps_s": one.steps_s,
        "passes": [
            {"draft": draft, "gamma": gamma, "times": [
                [p.drafted, p.draft_s, p.verify_s, p.accept_s] for p in passes]}
            for (draft, gamma), passes in one.passes.items()
        ],
    }  # fmt: skip
