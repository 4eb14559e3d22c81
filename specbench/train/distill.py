"""Distillation in plain tensors: the loss that pulls a draft q towards its target p, and its first embeddings.

Independent of files, recipes or Trainers; the texts to learn on come from `outputs`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPT2LMHeadModel, PreTrainedModel, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Stack

from specbench.errors import UserError


def check_same_vocabulary(target_tokens: dict[str, int], draft_tokens: dict[str, int], target: str) -> None:
    """Check that the draft's token ids mean the same as the target's.

    Raises:
        UserError: they differ; the message names the first difference.
    """
    if target_tokens == draft_tokens:
        return
    either = target_tokens.keys() | draft_tokens.keys()
    differing = sorted(token for token in either if target_tokens.get(token) != draft_tokens.get(token))
    raise UserError(
        f"the draft's vocabulary is not that of distill.target={target}: {len(differing)} tokens differ, first "
        f"{differing[0]!r}; set tokenizer.start_from={target}"
    )


def distillation_loss(
    p_logits_BTV: torch.Tensor, q_logits_BTV: torch.Tensor, labels_BT: torch.Tensor, kl_weight: float
) -> torch.Tensor:
    """kl_weight · KL(p || q) + (1 − kl_weight) · cross-entropy, a mean over the labels that count.

    Forward KL makes q cover p, and bounds what rejects a draft: 1 − α = TV(p, q) ≤ sqrt(KL / 2).
    """
    counted_BT = labels_BT != -100
    size = min(p_logits_BTV.shape[-1], q_logits_BTV.shape[-1])
    log_q_NV = F.log_softmax(q_logits_BTV[counted_BT][:, :size].float(), dim=-1)
    log_p_NV = F.log_softmax(p_logits_BTV[counted_BT][:, :size].float(), dim=-1)
    loss = (log_p_NV.exp() * (log_p_NV - log_q_NV)).sum(-1).mean() * kl_weight
    if kl_weight < 1.0:
        loss = loss + (1.0 - kl_weight) * F.nll_loss(log_q_NV, labels_BT[counted_BT])
    return loss


@torch.no_grad()
def mean_overlap(p_logits_BTV: torch.Tensor, q_logits_BTV: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
    """α at T=1 on these tokens: the mean of Σ min(p, q) over the labels that count (Corollary 3.6)."""
    counted_BT = labels_BT != -100
    size = min(p_logits_BTV.shape[-1], q_logits_BTV.shape[-1])
    p_NV, q_NV = (logits[counted_BT][:, :size].float().softmax(-1) for logits in (p_logits_BTV, q_logits_BTV))
    return torch.minimum(p_NV, q_NV).sum(-1).mean()


def borrow(draft: PreTrainedModel, target: PreTrainedModel) -> None:
    """Start the draft from the target: its embeddings and, where the widths are the same, some of its layers.

    Training then has little left to find: tokens alike for the target are alike for the draft from the first step.
    """
    borrow_embeddings(draft, target)
    if isinstance(draft, T5ForConditionalGeneration) and isinstance(target, T5ForConditionalGeneration):
        _borrow_layers(draft.encoder, target.encoder)
        _borrow_layers(draft.decoder, target.decoder)
    if isinstance(draft, GPT2LMHeadModel) and isinstance(target, GPT2LMHeadModel):
        _borrow_blocks(draft.transformer.h, target.transformer.h)
        for name in ("wpe", "ln_f"):
            ours, theirs = (getattr(model.transformer, name) for model in (draft, target))
            if ours.weight.shape == theirs.weight.shape:
                ours.load_state_dict(theirs.state_dict())


def borrow_embeddings(draft: PreTrainedModel, target: PreTrainedModel) -> None:
    """The target's embeddings, on as many of their principal directions as the draft is wide, at the draft's size."""
    ours = draft.get_input_embeddings().weight
    theirs = target.get_input_embeddings().weight.detach().float()
    rows = min(ours.shape[0], theirs.shape[0])
    with torch.no_grad():
        if ours.shape[1] == theirs.shape[1]:
            ours[:rows] = theirs[:rows].to(ours.dtype)
            return
        width = min(ours.shape[1], theirs.shape[1])
        _, _, directions = torch.linalg.svd(theirs[:rows], full_matrices=False)
        # Principal directions differ in strength; a random turn spreads it over the coordinates.
        turn, _ = torch.linalg.qr(torch.randn(width, width))
        projected = theirs[:rows] @ directions[:width].T @ turn
        size = ours.pow(2).mean().sqrt()
        ours[:rows, :width] = (projected * (size / projected.pow(2).mean().sqrt())).to(ours.dtype)


def _borrow_layers(ours: T5Stack, theirs: T5Stack) -> None:
    if _borrow_blocks(ours.block, theirs.block):
        ours.final_layer_norm.load_state_dict(theirs.final_layer_norm.state_dict())


def _borrow_blocks(ours: nn.ModuleList, theirs: nn.ModuleList) -> bool:
    """Layers of the same shape, evenly spaced from the first to the last; one layer alone is the first."""
    shapes = [{name: weight.shape for name, weight in blocks[0].state_dict().items()} for blocks in (ours, theirs)]
    if len(ours) > len(theirs) or shapes[0] != shapes[1]:
        return False
    for index, block in enumerate(ours):
        place = round(index * (len(theirs) - 1) / max(len(ours) - 1, 1))
        # Only T5's first layer has the position biases, which it keeps for the others.
        block.load_state_dict(theirs[place].state_dict(), strict=index == place == 0)
    return True
