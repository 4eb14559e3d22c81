"""The target with the weights of its linear maps rounded to 8 or 4 bits, as its own draft.

Self-speculation with quantised weights (Zhao et al. 2024, "QSpec"; Tiwari et al. 2025, "QuantSpec"): any target drafts
for itself. Weights are whole levels times a scale for a few inputs of an output (`kernels.levels`); keys, values and
activations stay as they are.

engine=native reads the levels and unpacks them in registers. **Elsewhere the cost is simulated**: the rounded weights
are held in the run's dtype, so alpha is exact for quantised weights and c is about 1.
"""

from specbench.algorithm.draft import Draft
from specbench.engine.eager.model import EagerModel
from specbench.errors import UserError
from specbench.loading.model_loader import LOGITS_ALONE, ModelRequest, Say, TargetOutputs
from specbench.methods.build import DraftBuilder, DraftRequest
from specbench.methods.model.draft import ModelDraft
from specbench.methods.quantised.config import QuantisedConfig
from specbench.text.processed import processed


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
        return ModelDraft(processed(self.models[0], self.request.run.sampling, vocabulary), vocabulary.size)

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
