"""Distillation in plain tensors: the loss that pulls a draft q towards its target p, and its first embeddings.

It does not know files, recipes or Trainers; the texts to learn on come from `outputs`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from specbench.errors import UserError


def check_same_vocabulary(target_tokens: dict[str, int], draft_tokens: dict[str, int], target: str) -> None:
    """Refuse a draft whose token ids mean something else than the target's."""
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
) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, α on these tokens): kl_weight · KL(p || q) + (1 − kl_weight) · cross-entropy, over labels that count.

    Forward KL makes q cover p, and bounds what rejects a draft: 1 − α = TV(p, q) ≤ sqrt(KL / 2).
    """
    counted_BT = labels_BT != -100
    size = min(p_logits_BTV.shape[-1], q_logits_BTV.shape[-1])
    log_q_NV = F.log_softmax(q_logits_BTV[counted_BT][:, :size].float(), dim=-1)
    log_p_NV = F.log_softmax(p_logits_BTV[counted_BT][:, :size].float(), dim=-1)
    p_NV = log_p_NV.exp()
    loss = (p_NV * (log_p_NV - log_q_NV)).sum(-1).mean() * kl_weight
    if kl_weight < 1.0:
        loss = loss + (1.0 - kl_weight) * F.nll_loss(log_q_NV, labels_BT[counted_BT])
    with torch.no_grad():
        alpha = torch.minimum(p_NV, log_q_NV.exp()).sum(-1).mean()
    return loss, alpha


def borrow_embeddings(draft: PreTrainedModel, target: PreTrainedModel) -> None:
    """Start the draft's embeddings as the target's, on as many principal directions as the draft is wide.

    Tokens alike for the target are then alike for the draft from the first step. Their size stays the draft's own.
    """
    ours = draft.get_input_embeddings().weight
    theirs = target.get_input_embeddings().weight.detach().float()
    width = min(ours.shape[1], theirs.shape[1])
    rows = min(ours.shape[0], theirs.shape[0])
    _, _, directions = torch.linalg.svd(theirs[:rows], full_matrices=False)
    projected = theirs[:rows] @ directions[:width].T
    with torch.no_grad():
        # Principal directions differ in strength; a random turn spreads it over the coordinates.
        turn, _ = torch.linalg.qr(torch.randn(width, width))
        projected = projected @ turn
        size = ours.pow(2).mean().sqrt()
        ours[:rows, :width] = (projected * (size / projected.pow(2).mean().sqrt())).to(ours.dtype)
