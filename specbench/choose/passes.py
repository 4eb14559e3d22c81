"""Timed passes of the candidates and of the drafts inside cascades, and the predictions made from them."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace

from specbench import theory
from specbench.analysis.costs.core_time import undisturbed
from specbench.analysis.costs.probe import Round, Timed, already_collected, probe, probe_rows, text_of
from specbench.analysis.forecast.predict import Grown, Prediction, Predictions
from specbench.choose.alpha import prepare, score
from specbench.choose.candidates import Scored
from specbench.config.model import ModelConfig, name_of
from specbench.config.verbs import ChooseConfig
from specbench.experiment.runner import Progress
from specbench.formatting import duration
from specbench.methods.cascade.config import CascadeConfig
from specbench.records.choosing import RoundRecord
from specbench.records.schema import Row

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

    For candidates in `trees` the expected tokens are those of their trees. `resamples`: in place of the config's.
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
    )


def round_record(one: Round) -> RoundRecord:
    """A round as plain values."""
    return {
        "steps_s": one.steps_s,
        "first_steps_s": one.first_steps_s,
        "waited": one.waited,
        "passes": [
            {"candidate": name, "gamma": gamma, "timed": [_plain(seen) for seen in passes]}
            for (name, gamma), passes in one.passes.items()
        ],
    }


def _plain(seen: Timed) -> Row:
    return {name: number for name, number in asdict(seen).items() if number is not None}


# The lengths of a vertical cascade by theory (section 6 of the paper). Its middle model is the target of the inner
# draft, so the best inner length is the gamma of Theorem 3.8 for alpha, c and v between these two. The inner draft's
# speedup there divides the middle model's c outside.


@dataclass(frozen=True)
class InnerRanking:
    """The inner length of a cascade, and the ranking of its inner draft on its middle model."""

    length: int
    table: Predictions


def rank_inner_drafts(configs: Sequence[ChooseConfig], progress: Progress) -> dict[str, InnerRanking]:
    """Of each vertical cascade, by its name, the ranking of its inner draft on its middle model."""
    found = dict[str, InnerRanking]()
    for config in configs:
        name, draft = config.draft.label(), config.draft
        exact = config.accept.rule == "exact"  # as inside a cascade, whatever the rule outside
        if name not in found and exact and isinstance(draft, CascadeConfig) and config.tree.shape == "none":
            inner = _inner_config(config, draft)
            progress.say(f"inside {name}: {inner.draft.label()} on {name_of(inner.target)}")
            scored = score(prepare([inner], progress), (), progress, max(inner.gammas))
            rounds = timed(scored, 1, progress)
            if len(rounds) < config.rounds:  # Ctrl-C is of the whole command
                raise KeyboardInterrupt
            found[name] = InnerRanking(draft.inner_gamma, predictions(scored, rounds))
    return found


def _inner_config(config: ChooseConfig, draft: CascadeConfig) -> ChooseConfig:
    """`config` with the cascade's middle model as the target, and its inner draft as the draft."""
    assert isinstance(draft.via, ModelConfig) and draft.inner is not None
    middle = {one.name: getattr(draft.via, one.name) for one in fields(ModelConfig)}
    inner = replace(draft.inner, cache_dir=draft.inner.cache_dir or draft.cache_dir)
    return replace(config, target=replace(config.target, **middle), draft=inner)


def of_cascades(table: Predictions, cascades: Mapping[str, InnerRanking]) -> list[str]:
    """A sentence for each of `cascades`, which are named as in `table`: the best lengths by theory."""
    lines = []
    for name, one in cascades.items():
        chains = [chain for chain in table.ranked if chain.draft == name]
        if chains and one.table.ranked:
            lines.append(_cascade_lengths(name, chains, one.length, one.table.ranked))
    return lines


def _cascade_lengths(name: str, chains: Sequence[Prediction], length: int, inner: Sequence[Prediction]) -> str:
    speedups = {one.gamma: one.calibrated for one in sorted(inner, key=lambda one: one.gamma)}
    best = max(inner, key=lambda one: one.calibrated)
    found = ", ".join(f"{value:.2f}× with {gamma}" for gamma, value in speedups.items())
    about = (
        f"inside {name}: α={best.alpha.value:.2f}, c={best.cost.c:.3f}; by theory (Theorem 3.8 with v) its middle "
        f"model would draft at {found} inner tokens; "
    )
    if best.calibrated <= 1:
        return f"{about}no inner draft helps: draft with the middle model alone"
    if length not in speedups:
        return f"{about}give draft.inner_gamma={best.gamma}"
    # c of the cascade was measured at its own inner length.
    factor = speedups[length] / best.calibrated
    outer = {
        one.gamma: theory.walltime_improvement(
            one.alpha.value, one.gamma, one.cost.c * factor, one.cost.verify_cost + one.cost.overhead
        )
        for one in chains
    }
    gamma = max(sorted(outer), key=lambda gamma: outer[gamma])
    c = next(one.cost.c for one in chains if one.gamma == gamma)
    return (
        f"{about}best draft.inner_gamma={best.gamma} gamma={gamma}, {outer[gamma]:.2f}× predicted "
        f"with c={c * factor:.3f} (c={c:.3f} measured at draft.inner_gamma={length})"
    )
