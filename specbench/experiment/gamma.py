"""From `gamma=` of a config to a number or a policy.

A number, the best number by a short probe (`auto`), or a policy that adapts to each completion, from the probe
(`adaptive`) or without a probe (`heuristic`). If the draft stops by its own confidence, a number is the maximum of a
pass. The probe decodes a few prompts that are not measured with the target alone, scores the draft on these
completions, and times passes of every candidate.
"""

from dataclasses import replace
from time import monotonic

from specbench.algorithm.gamma import DraftingPlan
from specbench.analysis.acceptance.agreement import Agreement, agreements
from specbench.analysis.costs.probe import Candidate, Round, once, probe
from specbench.analysis.forecast.predict import Prediction, Predictions
from specbench.config.schema import RunConfig
from specbench.experiment.build import Parts
from specbench.experiment.core_time import disturbed_by, undisturbed
from specbench.experiment.tree import choose_tree, own_texts, unsaid, with_tree
from specbench.loading.devices import agree
from specbench.loading.model_loader import Say
from specbench.theory import expected_tokens

CANDIDATES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
ROUNDS = (8, 16)  # at least so many, and up to the second of these while they take less than PROBE_S seconds
PROBE_S = 10.0
RESAMPLES = 200


def with_gamma(
    config: RunConfig, parts: Parts, before: DraftingPlan | None, note: Say = unsaid
) -> tuple[Parts, DraftingPlan]:
    """`parts` with the policy of the config, and the choice: `before`, or made now.

    `note` receives the signs that other work disturbed the probe, although it was repeated.
    Ranks time their own passes but take the first rank's choice.
    """
    before = agree(before)
    choose = choose_gamma if config.tree.shape == "none" else choose_tree
    choice = agree(choose(config, parts, note)) if before is None else before
    if config.tree.shape != "none":
        parts = with_tree(config, parts, choice)
    return replace(parts, spec=replace(parts.spec, gamma=choice.policy)), choice


def choose_gamma(config: RunConfig, parts: Parts, note: Say = unsaid) -> DraftingPlan:
    """The gamma of a config: a number as it is given, or from a probe."""
    confidence = config.draft.confidence_bound()
    if isinstance(config.gamma, int) and confidence is None:
        return DraftingPlan(config.gamma, config.gamma)
    if isinstance(config.gamma, int) or config.gamma == "heuristic":
        while_sure = "" if confidence is None else f" while q ≥ {confidence:g}"
        most = config.gamma if isinstance(config.gamma, int) else None
        return DraftingPlan(f"{config.gamma}{while_sure}", None, most)
    ranked = _probe(config, parts, note)
    if not ranked:  # texts of a token or two
        return DraftingPlan(config.gamma, 1, probe=[])
    best, rows = ranked[0], [one.to_json() for one in ranked]
    if config.gamma == "auto":
        return DraftingPlan(config.gamma, best.gamma, probe=rows)
    return DraftingPlan(
        config.gamma, None, alpha=best.alpha.value, prices={one.gamma: _price(one) for one in ranked}, probe=rows
    )


def _price(one: Prediction) -> float:
    """The divisor of Eq. 1 for the estimated speedup: the cost of a pass, corrected for the error of Eq. 1."""
    return expected_tokens(one.alpha.value, one.gamma) / one.estimated.value


def _probe(config: RunConfig, parts: Parts, note: Say) -> list[Prediction]:
    spec = parts.spec
    prompts, texts = own_texts(config, parts)
    name = config.draft.label()
    lossy, alpha = spec.verification.lossy, config.simulate.alpha
    rules = {} if lossy is None else {"rule": lossy}
    if alpha is None:
        found = [
            agreements(parts.target, [parts.draft], prompt, text, spec.sampling, rules, max(CANDIDATES))[0]
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        own = "rule" if rules else spec.verification.own_alpha
        found = found if own is None else [one.at(own) for one in found]
    else:
        found = [Agreement([alpha] * len(text), [alpha] * len(text)) for text in texts]
    rounds: list[Round] = []
    began = monotonic()
    # Ranks of one target must make the same passes, whatever their own clocks say.
    while agree(len(rounds) < ROUNDS[0] or (len(rounds) < ROUNDS[1] and monotonic() - began < PROBE_S)):
        rounds += probe(
            parts.target,
            {name: Candidate(parts.draft, spec)},
            CANDIDATES,
            list(zip(prompts, texts, strict=True)),
            rounds=ROUNDS[0] // 2,
            seed=config.seed,
            first=len(rounds),
            timing=once if config.target.tp_plan else undisturbed,  # ranks must make the same passes
        )
    if (signs := disturbed_by(rounds)) is not None:
        note(f"gamma={config.gamma}: its probe was disturbed, so that another gamma may be better ({signs})")
    whole = {name} if spec.verification.as_a_whole else set()
    return Predictions({name: found}, rounds, config.max_new_tokens, RESAMPLES, config.seed, whole).ranked
