"""The lengths of a vertical cascade by theory (section 6 of the paper).

Its middle model is the target of the inner draft, so the best inner length is the gamma of Theorem 3.8 for alpha, c and
v between these two. The inner draft's speedup there divides the middle model's c outside.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from specbench import theory
from specbench.analysis.forecast.predict import Prediction, Predictions
from specbench.choose.alpha import score
from specbench.choose.settled import prepare
from specbench.choose.timed_passes import predictions, timed
from specbench.config.model import ModelConfig, name_of
from specbench.config.verbs import ChooseConfig
from specbench.experiment.runner import Progress
from specbench.methods.cascade.config import CascadeConfig


@dataclass(frozen=True)
class InnerRanking:
    """The inner length of a cascade, and the ranking of its inner draft on its middle model."""

    length: int
    table: Predictions


def rank_inner_drafts(configs: Sequence[ChooseConfig], progress: Progress) -> dict[str, InnerRanking]:
    """The ranking of each vertical cascade's inner draft on its middle model, by the cascade's name."""
    found = dict[str, InnerRanking]()
    for config in configs:
        name, draft = config.draft.label(), config.draft
        exact = config.accept.rule == "exact"  # as inside a cascade, whatever the rule outside
        if not isinstance(draft, CascadeConfig) or not isinstance(draft.via, ModelConfig):
            continue
        if name not in found and exact and config.tree.shape == "none":
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
        return f"{about}no inner draft helps: draft with only the middle model"
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
