"""transformers' Trainers with one addition: a learning rate per tensor in proportion to its size at the start.

They do not know recipes, files or metrics.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel, Seq2SeqTrainer, Trainer

NOT_DECAYED = ("norm", "bias", "ln_", "shared", "wte", "wpe")


def groups_by_size(model: PreTrainedModel, lr: float, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups whose rate is `lr` times the tensor's RMS at the start.

    T5's tensors start at very different sizes (embeddings 1, queries 1/128 at d_model 256). T5's own optimiser,
    Adafactor, moves each in proportion to its size; with one AdamW rate for all, either the queries blow up or
    the embeddings hardly move. Sizes are rounded to powers of two, so that there are few groups.
    """
    groups: dict[tuple[float, bool], list[torch.nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        rms = float(weight.detach().float().pow(2).mean().sqrt())
        # Biases start at 0: they move like a tensor of a small usual size.
        size = 2.0 ** round(torch.log2(torch.tensor(rms)).item()) if rms > 1e-4 else 2.0**-5
        decayed = weight.dim() > 1 and not any(part in name for part in NOT_DECAYED)
        groups.setdefault((size, decayed), []).append(weight)
    return [
        {"params": weights, "lr": lr * size, "weight_decay": weight_decay if decayed else 0.0}
        for (size, decayed), weights in sorted(groups.items(), key=lambda item: item[0])
    ]


class BySize:
    """Mixed into a Trainer: `lr_by_size` replaces its optimiser by AdamW over `groups_by_size`."""

    lr_by_size: bool = False

    def create_optimizer(self, model: PreTrainedModel | None = None) -> torch.optim.Optimizer:
        if not self.lr_by_size or self.optimizer is not None:  # type: ignore[has-type]
            return super().create_optimizer(model)  # type: ignore[misc]
        args = self.args  # type: ignore[attr-defined]
        groups = groups_by_size(model or self.model, args.learning_rate, args.weight_decay)  # type: ignore[attr-defined]
        self.optimizer = torch.optim.AdamW(groups, betas=(args.adam_beta1, args.adam_beta2), fused=True)
        return self.optimizer


class SpecSeq2SeqTrainer(BySize, Seq2SeqTrainer):
    """Teacher forcing on pairs."""


class SpecTrainer(BySize, Trainer):
    """Next-token training on text."""
