"""The losses of a draft against its target; without the Trainer, since drafts that learn also use them."""

import torch
import torch.nn.functional as F

from specbench.train.logits import Logits, computed


def distillation_loss(
    p_logits_BTV: Logits, q_logits_BTV: torch.Tensor, labels_BT: torch.Tensor, kl_weight: float
) -> torch.Tensor:
    """kl_weight · KL(p || q) + (1 − kl_weight) · cross-entropy, a mean over the labels that count.

    Forward KL makes q cover p, and bounds what rejects a draft: 1 − α = TV(p, q) ≤ sqrt(KL / 2).
    """
    counted_BT = labels_BT != -100
    p_NV, q_NV = computed(p_logits_BTV[counted_BT]), q_logits_BTV[counted_BT]
    size = min(p_NV.shape[-1], q_NV.shape[-1])
    log_p_NV, log_q_NV = (F.log_softmax(logits[:, :size].float(), dim=-1) for logits in (p_NV, q_NV))
    loss = (log_p_NV.exp() * (log_p_NV - log_q_NV)).sum(-1).mean() * kl_weight
    if kl_weight < 1.0:
        loss = loss + (1.0 - kl_weight) * F.nll_loss(log_q_NV, labels_BT[counted_BT])
    return loss


@torch.no_grad()
def mean_overlap(p_logits_BTV: Logits, q_logits_BTV: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
    """α at T=1 on these tokens: the mean of Σ min(p, q) over the labels that count (Corollary 3.6)."""
    counted_BT = labels_BT != -100
    p_NV, q_NV = computed(p_logits_BTV[counted_BT]), q_logits_BTV[counted_BT]
    size = min(p_NV.shape[-1], q_NV.shape[-1])
    p_NV, q_NV = (logits[:, :size].float().softmax(-1) for logits in (p_NV, q_NV))
    return torch.minimum(p_NV, q_NV).sum(-1).mean()
