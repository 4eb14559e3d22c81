"""Timed passes of the candidates, and the predictions made from them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from specbench.analysis.costs.probe import Round, already_collected, probe
from specbench.analysis.costs.probe_rows import probe_rows
from specbench.analysis.forecast.predict import Grown, Predictions
from specbench.choose.alpha import Scored
from specbench.engine.session import Prompt
from specbench.experiment.core_time import undisturbed
from specbench.experiment.runner import Progress
from specbench.records.documents import RoundRecord


def timed(scored: Scored, batch: int, progress: Progress) -> list[Round]:
    """Timed passes of so many completions at once."""
    if batch > 1:
        progress.say(f"batch={batch}")
    with already_collected():
        return time_passes(scored, 0, scored.config.rounds) if batch == 1 else time_rows(scored, batch)


def time_passes(scored: Scored, first: int, rounds: int) -> list[Round]:
    """Rounds number `first` and so on of every candidate and gamma, in completions spread over the sample."""
    config, parts = scored.config, scored.candidates[0].parts
    texts: list[tuple[Prompt, list[int]]] = list(zip(parts.prompts, scored.sample.texts, strict=False))
    return probe(
        parts.target,
        {one.name: one.timed for one in scored.candidates},
        sorted(set(config.gammas)),
        [texts[index * len(texts) // config.rounds] for index in range(config.rounds)],
        rounds=rounds,
        seed=config.seed,
        first=first,
        timing=undisturbed,
    )


def time_rows(scored: Scored, batch: int) -> list[Round]:
    """As `time_passes`, of so many completions at once."""
    config, parts = scored.config, scored.candidates[0].parts
    return probe_rows(
        parts.target,
        {one.name: one.timed for one in scored.candidates},
        sorted(set(config.gammas)),
        list(zip(parts.prompts, scored.sample.texts, strict=False)),
        batch,
        rounds=config.rounds,
        seed=config.seed,
        timing=undisturbed,
    )


def predictions(
    scored: Scored, rounds: Sequence[Round], trees: Mapping[str, Grown] | None = None, batch: int = 1
) -> Predictions:
    """Predictions from the agreement of each candidate and the passes timed at this batch.

    For candidates in `trees` the expected tokens are those of their trees.
    """
    config = scored.config
    whole = {candidate.name for candidate in scored.candidates if candidate.whole}
    return Predictions(
        scored.agreements_by_candidate(),
        rounds,
        config.max_new_tokens,
        config.resamples,
        config.seed,
        whole,
        trees,
        batch > 1,
    )


def round_record(one: Round) -> RoundRecord:
    """A round as plain values."""
    return {
        "steps_s": one.steps_s,
        "first_steps_s": one.first_steps_s,
        "waited": one.waited,
        "passes": [
            {"candidate": name, "gamma": gamma, "timed": [asdict(seen) for seen in passes]}
            for (name, gamma), passes in one.passes.items()
        ],
    }
