"""The target with the weights of its linear maps rounded to 8 or 4 bits, as its own draft.

Self-speculation with quantised weights (Zhao et al. 2024, "QSpec"; Tiwari et al. 2025, "QuantSpec"): any target drafts
for itself. Weights are whole levels times a scale for a few inputs of an output (`kernels.levels`); keys, values and
activations stay as they are.

A decoder-only target reads the prompt, up to its last token, for both: the draft begins with a copy of its keys and
values. So q is conditional on these, and differs a little from the q of a draft that reads the prompt itself.

engine=native reads the levels and unpacks them in registers. **Elsewhere the cost is simulated**: the rounded weights
are held in the run's dtype, so alpha is exact for quantised weights and c is about 1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from specbench.algorithm.draft import Draft
from specbench.engine.batch import Batch, RowSession
from specbench.engine.beginnings import OfSession
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Model, Prompt, Session, innermost
from specbench.errors import UserError
from specbench.loading.model_loader import LOGITS_ALONE, ModelRequest, Say, TargetOutputs
from specbench.methods.build import DraftBuilder, DraftRequest
from specbench.methods.model.draft import ModelDraft, ModelDraftSession
from specbench.methods.quantised.config import QuantisedConfig
from specbench.sampling import Sampling
from specbench.text.processed import ProcessedSession, processed


def engine_of(model: Model) -> Any:
    """The model that a batch has rows of; any other model itself."""
    return model.model if isinstance(model, Batch) else model


@contextmanager
def prompt_of(session: Session, model: Model) -> Iterator[None]:
    """A context in which sessions of `model`, of the target's layers, take over what the target's `session` has read.

    They read the prompt themselves if the two run in different engines, or if there is an encoder.
    """
    inner = engine_of(innermost(model))
    before = inner.beginnings
    while isinstance(session, ProcessedSession):
        session = session.session
    target = session.batch.model if isinstance(session, RowSession) else getattr(session, "model", None)
    alike = type(target) is type(inner)
    if alike and not inner.is_encoder_decoder:
        inner.beginnings = OfSession(session)
    try:
        yield
    finally:
        inner.beginnings = before


class QuantisedDraft(ModelDraft):
    """The target in fewer bits."""

    starts_on_target = False  # it copies from the target's session at the start, and uses its own from then on

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> ModelDraftSession:
        with prompt_of(session, self.model):
            return self.start(prompt, sampling)

    def in_batch(self, rows: int) -> "QuantisedDraft":
        return QuantisedDraft(self.model.in_batch(rows), self.vocabulary_size)


class QuantisedBuilder(DraftBuilder[QuantisedConfig]):
    """Builds `draft=quantised` from a second copy of the target."""

    def __init__(self, request: DraftRequest[QuantisedConfig]) -> None:
        super().__init__(request)
        target = request.run.target
        if target.device_map is not None or target.tp_plan is not None:
            raise UserError(f"{request.key}.kind=quantised: the target is spread over devices; use draft=early-exit")

    def load(self, target: EagerModel, say: Say) -> Draft:
        self.models.append(self.load_model(say))
        vocabulary = self.request.vocabulary
        return QuantisedDraft(processed(self.models[0], self.request.run.sampling, vocabulary), vocabulary.size)

    def load_model(self, say: Say, needed: TargetOutputs = LOGITS_ALONE) -> EagerModel:
        """`needed`: by a draft inside, for which it is the target."""
        request, run, bits = self.request, self.request.run, self.draft.bits
        wanted = ModelRequest(
            run.target, request.key, request.vocabulary, run, request.device, needed, level_bits=bits
        )  # fmt: skip
        model = request.loader.load(wanted, say)
        if model.engine != "native":
            say(f"{request.key}: weights in {bits} bits; α is theirs, the cost is simulated at full size")
        return model
