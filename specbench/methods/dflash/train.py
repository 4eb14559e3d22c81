"""Training a block drafter on a frozen target.

DFlash (2602.06036) trains on blocks that begin at places drawn anew for each batch, all blocks of a text in one run,
and counts later tokens of a block less. Its loss is the cross-entropy of the text's tokens; here each token of a block
is held to the target's distribution there, whose gradient is the same in expectation over texts that the target wrote.

DSpark (2607.05147) is given the text's own tokens before each, and a head learns to predict the acceptance.

Shapes: B texts, T tokens, A places where a block begins, K drafted tokens, F numbers of a feature, D width, V tokens of
the vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from datasets import Dataset
from transformers import PreTrainedModel

from specbench.errors import UserError
from specbench.methods.decoder_layer import LayerShape
from specbench.methods.dflash.network import BlockDrafter, BlockShape
from specbench.train.frozen import FrozenTargetLearner, Seen
from specbench.train.logits import Logits, computed
from specbench.train.losses import distillation_loss
from specbench.train.recipe_schema import BlockPlan, Recipe

HEAD_WIDTH = 32  # the least of the layers' attention


class TargetOutput(NamedTuple):
    """What the target read and computed; its logits at t are about the token after t."""

    features_BTF: torch.Tensor
    p_BTV: Logits
    ids_BT: torch.Tensor


class BlockLearner(FrozenTargetLearner[TargetOutput]):
    """The network, and the frozen target that it learns from. Only the network's weights are its parameters."""

    trained: BlockDrafter
    predictor = "drafted token"

    def __init__(self, target: PreTrainedModel, recipe: Recipe, train_set: Dataset) -> None:
        super().__init__(target, recipe)
        self.plan = recipe.block
        shape = shape_for(target, self.plan)
        drafter = BlockDrafter(shape, target.get_output_embeddings().weight.shape[0])
        if shape.rank:
            torch.nn.init.zeros_(drafter.markov_head.markov_w2.weight)
        self.trained, self.measured = drafter.to(target.device).bind(target), shape.drafted

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(self.trained.shape.taps)

    def output_of(self, seen: Seen, given: dict[str, torch.Tensor]) -> TargetOutput:
        return TargetOutput(torch.cat(seen.taps, -1), seen.p_BTV, seen.ids_BT)

    def loss_of(self, output: TargetOutput, labels_BT: torch.Tensor) -> torch.Tensor:
        labels_BT, length = self.of_rows(labels_BT), labels_BT.shape[1]
        places_A = self._places(labels_BT)
        states_BAKD = self._states(output, places_A)
        total, weights = 0.0 * states_BAKD.sum(), 0.0  # also if nothing counts there is a gradient
        for ahead in range(self.trained.shape.drafted):
            at_A = places_A + ahead  # the target's row about a block's token `ahead`, which is also the token before it
            within = at_A < length
            labels_BA = labels_BT[:, at_A[within]]
            if not (labels_BA != -100).any():
                continue
            states_BAD, before_BA = states_BAKD[:, within, ahead], output.ids_BT[:, at_A[within]]
            p_BAV, q_BAV = computed(output.p_BTV[:, at_A[within]]), self._logits(states_BAD, before_BA)
            loss = distillation_loss(p_BAV, q_BAV, labels_BA, self.kl_weight)
            if self.trained.shape.confidence is not None:
                loss = loss + self._confidence_loss(states_BAD, before_BA, p_BAV, q_BAV, labels_BA)
            total, weights = total + self.plan.decay**ahead * loss, weights + self.plan.decay**ahead
        return total / max(weights, 1e-9)

    def _places(self, labels_BT: torch.Tensor) -> torch.Tensor:
        """Where blocks begin, drawn among the places after which a token of some text counts."""
        counted_P = (labels_BT[:, : max(1, labels_BT.shape[1] - 1)] != -100).any(0).nonzero()[:, 0]
        if not len(counted_P):
            counted_P = counted_P.new_zeros(1)
        drawn = torch.randperm(len(counted_P), device=labels_BT.device)[: self.plan.places]
        return counted_P[drawn].sort().values

    def _confidence_loss(
        self, states_BAD: torch.Tensor, before_BA: torch.Tensor, p: torch.Tensor, q: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        """Cross-entropy with the chance that the token is accepted, the sum of min(p, q)."""
        counted = labels != -100
        accepted = torch.minimum(p[counted].float().softmax(-1), q[counted].detach().float().softmax(-1)).sum(-1)
        logits = self.trained.accepted(states_BAD[counted], before_BA[counted])
        return F.binary_cross_entropy_with_logits(logits.float(), accepted.clamp(max=1.0))

    def logits(self, output: TargetOutput, ahead: int) -> torch.Tensor:
        """The block that predicts `ahead` tokens after the next begins with the next."""
        length = output.ids_BT.shape[1]
        places_A = torch.arange(1, length - ahead + 1, device=output.ids_BT.device)
        at_A = places_A + ahead - 1
        return self._logits(self._states(output, places_A)[:, :, ahead - 1], output.ids_BT[:, at_A])

    def _states(self, output: TargetOutput, places_A: torch.Tensor) -> torch.Tensor:
        return self.trained.states_after(output.features_BTF, output.ids_BT, places_A)

    def _logits(self, states: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """Logits of tokens, from their states and the tokens before them."""
        logits = self.trained.project(states.to(self.target.dtype))
        return logits + self.trained.markov_head(before) if self.trained.shape.rank else logits


def shape_for(target: PreTrainedModel, plan: BlockPlan) -> BlockShape:
    """The network of `plan` for a target: as wide as it, with as many heads."""
    config = target.config.get_text_config()
    if config.is_encoder_decoder:
        raise UserError(
            "distill.target: block drafters are for decoder-only targets; use another recipe, such as eagle"
        )
    layers, width, heads = config.num_hidden_layers, config.hidden_size, config.num_attention_heads
    if not 0 <= min(plan.taps) <= max(plan.taps) < layers:
        raise UserError(f"block.taps is {list(plan.taps)}: give depths from 0 to {layers - 1} of this target")
    mask = plan.mask if plan.mask is not None else config.pad_token_id
    if mask is None or not 0 <= mask < target.get_input_embeddings().weight.shape[0]:
        raise UserError(f"block.mask is {mask}: give the id of a token that stands for tokens that are not known")
    head = max(HEAD_WIDTH, width // heads)
    layer = LayerShape(
        width, plan.hidden or 2 * width, heads, heads, head, "rms", 1e-6, "silu", True, False, "rotary", head**-0.5,
        False, head_norms=True,
    )  # fmt: skip
    confidence = plan.rank if plan.rank and plan.confidence else None
    return BlockShape(layer, plan.layers, tuple(plan.taps), plan.size, mask, plan.rank, confidence)
