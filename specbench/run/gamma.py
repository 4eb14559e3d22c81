"""What `gamma=` of a config comes to: a number, or one found by a short probe (`auto`), or a policy that follows each
text, from the probe (`adaptive`) or without one (`heuristic`). Where the draft stops by its own confidence a number is
the most that a pass drafts.

The probe decodes a few of the run's own prompts with the target alone, scores the draft on these texts, and times
passes of every candidate. What it found is plain data: it goes into the journal and the record, so that a run that was
interrupted goes on with the same gamma, and a reader sees why.
"""

from collections.abc import Mapping
from dataclasses import replace
from time import monotonic
from typing import Any

from specbench.acceptance import accept_block
from specbench.config import RunConfig
from specbench.config.checks import MAX_GAMMA
from specbench.decoding import autoregressive
from specbench.gamma import Adaptive, Constant, Gamma, Heuristic
from specbench.measure.agreement import Agreement, agreements
from specbench.measure.predict import Prediction, Predictions
from specbench.measure.probe import Candidate, Round, probe
from specbench.run.accept import build_rule
from specbench.run.build import Parts
from specbench.run.distributed import agree
from specbench.run.identity import draft_name
from specbench.run.measure_prompt import generator_for, sampling_of

CANDIDATES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
TOKENS = 400  # of the target's own text to count passes on, from at least the first and at most the second of these
PROMPTS = (8, 64)
ROUNDS = (8, 16)  # at least so many, and up to the second of these while they take less than PROBE_S seconds
PROBE_S = 10.0
RESAMPLES = 200
Plain = dict[str, Any]


def with_gamma(config: RunConfig, parts: Parts, before: Plain | None) -> tuple[Parts, Plain]:
    """`parts` with the policy that the config comes to, and what it was settled as: `before`, or now. Ranks time their
    own passes but take the first one's word."""
    before = agree(before)
    settled = agree(choose_gamma(config, parts)) if before is None else before
    return replace(parts, gamma=policy(settled)), settled


def choose_gamma(config: RunConfig, parts: Parts) -> Plain:
    """`requested`; `gamma`, the number it is frozen to (None: it changes from pass to pass); and where a probe was made
    what it found."""
    confidence = config.draft.confidence
    if isinstance(config.gamma, int) and confidence is None:
        return {"requested": config.gamma, "gamma": config.gamma}
    if isinstance(config.gamma, int) or config.gamma == "heuristic":
        while_sure = "" if confidence is None else f" while q ≥ {confidence:g}"
        most = {"most": config.gamma} if isinstance(config.gamma, int) else {}
        return {"requested": f"{config.gamma}{while_sure}", "gamma": None, **most}
    ranked = _probe(config, parts)
    if not ranked:  # texts of a token or two
        return {"requested": config.gamma, "gamma": 1, "probe": []}
    best = ranked[0]
    found: Plain = {"requested": config.gamma, "gamma": best.gamma, "probe": [one.row() for one in ranked]}
    if config.gamma == "adaptive":
        found |= {"gamma": None, "alpha": best.alpha.value, "prices": {str(one.gamma): _price(one) for one in ranked}}
    return found


def policy(settled: Mapping[str, Any]) -> Gamma:
    """What decides in each pass."""
    if (most := settled["gamma"] or settled.get("most")) is not None:
        return Constant(most)
    if "prices" not in settled:
        return Heuristic(MAX_GAMMA)
    return Adaptive(settled["alpha"], {int(gamma): price for gamma, price in settled["prices"].items()})


def _price(one: Prediction) -> float:
    """What Eq. 1 must be divided by for the estimated speedup: the cost of a pass, and by how much Eq. 1 is off."""
    return one.tokens_per_pass_iid / one.estimated.value


def _probe(config: RunConfig, parts: Parts) -> list[Prediction]:
    sampling = sampling_of(config)
    prompts, texts = parts.prompts[: PROMPTS[1]], list[list[int]]()
    for index, prompt in enumerate(prompts):
        if len(texts) >= PROMPTS[0] and sum(map(len, texts)) >= TOKENS:
            break
        trace = autoregressive(
            parts.target,
            prompt,
            sampling=sampling,
            max_new_tokens=config.max_new_tokens,
            generator=generator_for(config.seed, index, "baseline", parts.device),
        )
        texts.append(trace.tokens)
    prompts = prompts[: len(texts)]
    name = draft_name(config)
    picked, alpha = build_rule(config, sampling), config.simulate.alpha
    rules = {} if picked.lossy is None else {"rule": picked.lossy}
    if alpha is None:
        found = [
            agreements(parts.target, [parts.draft], prompt, text, sampling, rules)[0]
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        found = [one.at("rule") for one in found] if rules else found
    else:
        found = [Agreement([alpha] * len(text), [alpha] * len(text)) for text in texts]
    rounds: list[Round] = []
    began = monotonic()
    # Ranks of one target must make the same passes, whatever their own clocks say.
    while agree(len(rounds) < ROUNDS[0] or (len(rounds) < ROUNDS[1] and monotonic() - began < PROBE_S)):
        rounds += probe(
            parts.target,
            {name: Candidate(parts.draft, picked.accept, picked.compared)},
            CANDIDATES,
            list(zip(prompts, texts, strict=True)),
            sampling,
            max_new_tokens=config.max_new_tokens,
            rounds=ROUNDS[0] // 2,
            seed=config.seed,
            first=len(rounds),
        )
    whole = {name} if picked.accept is accept_block else set()
    return Predictions({name: found}, rounds, config.max_new_tokens, RESAMPLES, config.seed, whole).ranked
