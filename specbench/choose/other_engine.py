"""A recommendation for another engine: alpha depends only on the models, times are measured on that engine."""

from collections.abc import Callable, Mapping, Sequence

from specbench.analysis.costs.probe import Round
from specbench.analysis.forecast.predict import Prediction
from specbench.choose.alpha import Scored
from specbench.choose.candidates import LoadedCandidate
from specbench.engine.session import Prompt
from specbench.engine.translated import TranslatedModel
from specbench.errors import UserError
from specbench.experiment.core_time import disturbed_by, least_disturbed
from specbench.interop.serving.assisted import AssistedGeneration
from specbench.interop.serving.engine import Engine
from specbench.interop.serving.timing import prove, time_engine
from specbench.methods.model.draft import ModelDraft
from specbench.records.documents import Verified

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
        found[one.name] = AssistedGeneration(
            _network(parts.target), _network(draft.model), parts.spec.sampling, one.config.max_new_tokens,
            parts.target.now,
        )  # fmt: skip
    return found


def _network(model: object) -> object:
    """The `transformers` module that our engines are made from."""
    return getattr(model, "network")  # noqa: B009 a Model need not have one


def rounds_of(engines: Engines, scored: Scored) -> list[Round]:
    """Timed steps and passes of the engines, at places spread over the sample."""
    config = scored.config
    texts = list(zip(scored.candidates[0].parts.prompts, scored.sample.texts, strict=False))
    return time_engine(
        engines, sorted(set(config.gammas)), texts, config.max_new_tokens, config.rounds, config.seed
    )  # fmt: skip


def verify(engines: Engines, best: Sequence[Prediction], scored: Scored) -> list[Verified]:
    """The engine's measured speedup over the prompts of the sample, for each of the `best`, with the prediction."""
    prompts: list[Prompt] = scored.candidates[0].parts.prompts[: len(scored.sample.texts)]
    names = {one.name: one.names() for one in scored.candidates}
    asked = [(one.draft, one.gamma) for one in best]
    proofs, waited = least_disturbed(lambda: prove(engines, asked, prompts, scored.config.seed))
    signs = disturbed_by([], waited)
    rows = list[Verified]()
    for one in best:
        proof = proofs[one.draft, one.gamma]
        measured, called = proof.speedup, names[one.draft]
        if measured is None:
            raise UserError(
                f"{one.draft}: only {proof.equal_share:.0%} of the completions are as without a draft: no speedup"
            )
        rows.append({
            "draft": called["draft"], "accept": called["accept"], "lossy": called["lossy"],
            "candidate": called["candidate"], "gamma": one.gamma, "run_id": None, "reused": False,
            "estimated": one.estimated.to_json(),
            "measured": measured.value, "measured_low": measured.low, "measured_high": measured.high,
            "off": None if signs else one.estimated.value / measured.value - 1, "disturbed_by": signs,
            "alike": proof.equal_share,
            "tokens_per_pass": None, "alpha": None, "c": None, "verify_cost": None, "overhead": None,
        })  # fmt: skip
    return rows
