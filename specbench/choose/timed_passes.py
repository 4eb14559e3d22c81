"""Timed passes of the candidates and of the drafts inside cascades, and the predictions made from them."""

import time
from collections.abc import Callable, Mapping, Sequence

from specbench.analysis.costs.core_time import undisturbed
from specbench.analysis.costs.probe import already_collected, probe, probe_rows, text_of
from specbench.analysis.forecast.predict import Grown, Predictions
from specbench.choose.candidates import Scored
from specbench.experiment.runner import Progress
from specbench.formatting import duration
from specbench.records.timed_rounds import Round

FEWEST_ROUNDS = 2  # that a ranking is made from
ROUGH = 100  # resamples of a ranking that is only shown on the way
SHOWN_EVERY_S = 2.0


def timed(scored: Scored, batch: int, progress: Progress, trees: Mapping[str, Grown] | None = None) -> list[Round]:
    """Timed passes of so many completions at once; `progress` receives the best candidate after each round.

    Ctrl-C ends the timing: rounds that are done are returned, if there are two or more.
    """
    done = list[Round]()
    most, began = scored.config.rounds, time.monotonic()
    shown, shown_at = "", began

    def told(rounds: Sequence[Round]) -> None:
        nonlocal shown, shown_at
        done[:] = rounds
        now = time.monotonic()
        left = (now - began) / (len(rounds) + 1) * (most - len(rounds))  # as long as those before and the warm-up
        if now - shown_at >= SHOWN_EVERY_S:
            shown, shown_at = f"{best_so_far(scored, rounds, trees, batch)}; about {duration(left)} left", now
        progress.advance(len(rounds), most, shown)

    with already_collected():
        try:
            if batch == 1:
                return time_passes(scored, 0, most, told)
            progress.say(f"batch={batch}")
            return probe_rows(
                scored.candidates[0].parts.target,
                {one.name: one.timed for one in scored.candidates},
                scored.gammas,
                scored.texts,
                batch,
                rounds=most,
                seed=scored.config.seed,
                timing=undisturbed,
                told=told,
            )
        except KeyboardInterrupt:
            if len(done) < FEWEST_ROUNDS:
                raise
            progress.note(f"interrupted: ranked by {len(done)} of {most} rounds")
            return done


def best_so_far(scored: Scored, rounds: Sequence[Round], trees: Mapping[str, Grown] | None, batch: int) -> str:
    """The candidate that leads after `rounds`, in a few words."""
    ranked = predictions(scored, rounds, trees, batch, ROUGH).ranked
    if not ranked:
        return "no full pass yet"
    best = ranked[0]
    return f"best so far: {best.tree or f'{best.draft} γ={best.gamma}'}, {best.estimated.value:.2f}×"


def time_passes(
    scored: Scored, first: int, rounds: int, told: Callable[[Sequence[Round]], None] = lambda _: None
) -> list[Round]:
    """Rounds number `first` and so on of every candidate and gamma, in completions spread over the sample's tokens.

    A draft that grows holds the completions before the one that is timed, as in a run. `told` receives the rounds done
    so far.
    """
    config, texts = scored.config, scored.texts
    numbers = iter(range(first, first + rounds))

    def with_stores(work: Callable[[], Round]) -> Round:
        scored.stores.before(text_of(texts, next(numbers)))
        return undisturbed(work)

    found = probe(
        scored.candidates[0].parts.target,
        {one.name: one.timed for one in scored.candidates},
        scored.gammas,
        texts,
        rounds=rounds,
        seed=config.seed,
        first=first,
        timing=with_stores,
        told=told,
    )
    scored.stores.before(0)
    return found


def predictions(
    scored: Scored, rounds: Sequence[Round], trees: Mapping[str, Grown] | None = None, batch: int = 1,
    resamples: int | None = None,
) -> Predictions:  # fmt: skip
    """Predictions from the agreement of each candidate and the passes timed at this batch.

    For candidates in `trees` the expected tokens come from their trees. `resamples`: in place of the config's.
    """
    config = scored.config
    whole = {candidate.name for candidate in scored.candidates if candidate.whole}
    return Predictions(
        scored.agreements_by_candidate(),
        rounds,
        config.max_new_tokens,
        resamples or config.resamples,
        config.seed,
        whole,
        trees,
        batch > 1,
        scored.groups,
    )
