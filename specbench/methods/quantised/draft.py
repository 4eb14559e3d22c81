"""The target with the weights of its linear maps rounded to 8 or 4 bits, as its own draft.

Self-speculation with quantised weights (Zhao et al. 2024, "QSpec"; Tiwari et al. 2025, "QuantSpec"): any target drafts
for itself. Weights are rounded to symmetric levels, in 8 bits with a scale for each output, in 4 bits with a scale for
each `GROUP` inputs of an output; keys, values and activations stay as they are.

**The cost is simulated**: the rounded weights are held in the run's dtype and multiplied by the engine's own kernels,
which read as many bytes as the target's. So alpha is that of quantised weights, and c about 1, which says nothing of
kernels that read 8 or 4 bits.

Shapes: N outputs, K inputs of a linear map.
"""

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from specbench.algorithm.draft import Draft
from specbench.engine.eager.model import EagerModel
from specbench.engine.processed import processed
from specbench.errors import UserError
from specbench.loading.model_loader import ModelRequest, Say
from specbench.methods.build import DraftBuilder, DraftRequest
from specbench.methods.model.draft import ModelDraft
from specbench.methods.quantised.config import QuantisedConfig

GROUP = 32  # inputs that share a scale in 4 bits


def rounded(weight_NK: Tensor, bits: int) -> Tensor:
    """The weights as symmetric integers of `bits` bits times their scale, in their own dtype."""
    outputs, inputs = weight_NK.shape
    group = inputs if bits == 8 else GROUP
    padded = nn.functional.pad(weight_NK.float(), (0, -inputs % group)).view(outputs, -1, group)
    most = 2 ** (bits - 1) - 1
    scale = padded.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / most
    levels = (padded / scale).round()
    found_NK: Tensor = (levels * scale).view(outputs, -1)[:, :inputs].to(weight_NK.dtype)
    return found_NK


@torch.no_grad()
def quantise(network: nn.Module, bits: int) -> None:
    """Round the weights of all linear maps of `network` in place, each once, also a head tied to the embedding."""
    weights = {}
    for module in network.modules():
        if isinstance(module, (nn.Linear, Conv1D)):
            weights[module.weight.data_ptr()] = module
    for module in weights.values():
        if isinstance(module, Conv1D):  # [K, N]
            module.weight.copy_(rounded(module.weight.T, bits).T)
        else:
            module.weight.copy_(rounded(module.weight, bits))


class QuantisedBuilder(DraftBuilder[QuantisedConfig]):
    """Builds `draft=quantised` from a second copy of the target."""

    def __init__(self, request: DraftRequest[QuantisedConfig]) -> None:
        super().__init__(request)
        target = request.run.target
        if target.device_map is not None or target.tp_plan is not None:
            raise UserError(f"{request.key}.kind=quantised: the target is spread over devices; use draft=early-exit")

    def load(self, target: EagerModel, say: Say) -> Draft:
        run = self.request.run
        wanted = ModelRequest(
            run.target, self.request.key, self.request.vocabulary, run, self.request.device, changes=True
        )  # fmt: skip
        model = self.request.loader.load(wanted, say)
        quantise(model.network, self.draft.bits)
        model.weights_changed()
        self.models.append(model)
        say(f"{self.request.key}: weights in {self.draft.bits} bits; α is theirs, the cost is simulated at full size")
        vocabulary = self.request.vocabulary
        return ModelDraft(processed(model, run.sampling, vocabulary), vocabulary.size)
