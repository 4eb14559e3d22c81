"""A draft's network learning from verified tokens while it serves (Liu et al. 2023, *Online Speculative Decoding*).

Forward KL as in `distill`, at the positions that the draft recorded, each with the target's logits of its verification.

Shapes: T tokens, N positions, V logits.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal

import torch

from specbench.drafts import VerifiedText
from specbench.train.distill import distillation_loss
from specbench.train.trainers import groups_by_size

Optimiser = Literal["adamw", "sgd"]


class OnlineLearner:
    """Learns on a copy of `network` in fp32, whose steps bf16 would round away, and writes the weights back."""

    def __init__(self, network: Any, lr: float, steps: int, optimiser: Optimiser, temperature: float) -> None:
        """An optimiser over the draft's weights, whose state lasts from one call of `learn` to the next; no dropout.

        `lr`: for AdamW times the RMS of each tensor, as in the recipes. `temperature`: of p and q in the loss.
        """
        self.network, self.steps, self.temperature = network, steps, temperature
        with torch.inference_mode(False):
            self.learning = copy.deepcopy(network).float().eval().requires_grad_(True)
        self.optimiser: torch.optim.Optimizer = (
            torch.optim.AdamW(groups_by_size(self.learning, lr, weight_decay=0.0))
            if optimiser == "adamw"
            else torch.optim.SGD(self.learning.parameters(), lr)
        )

    def learn(self, texts: Sequence[VerifiedText]) -> float:
        """Take the steps, each over all positions of `texts`; see `drafts.Learner`."""
        positions = sum(len(text.positions) for text in texts)
        losses = []
        with torch.inference_mode(False), torch.enable_grad():
            for _ in range(self.steps):
                self.optimiser.zero_grad(set_to_none=True)
                total = 0.0
                for text in texts:
                    loss = self._loss(text) * (len(text.positions) / positions)
                    loss.backward()
                    total += float(loss.detach())
                losses.append(total)
                self.optimiser.step()
        self._write_back()
        return losses[0]

    def _loss(self, text: VerifiedText) -> torch.Tensor:
        """KL(p || q), mean over the positions of one completion. The row before a token is what it was drawn from."""
        last, rows = max(text.positions), [position - 1 for position in text.positions]
        device = self.learning.device
        read_1T = torch.tensor([text.tokens[:last]], device=device)
        prompt = {"input_ids": read_1T}
        if self.learning.config.is_encoder_decoder:
            source_1S = torch.tensor([text.prompt.source], device=device)
            prompt = {"input_ids": source_1S, "decoder_input_ids": read_1T}
        q_NV = self.learning(**prompt, use_cache=False).logits[0, rows].float()
        p_NV = text.logits_NV.clone().to(device).float()
        counted = torch.zeros(1, len(rows), dtype=torch.long, device=device)
        t = self.temperature
        return distillation_loss(p_NV.unsqueeze(0) / t, q_NV.unsqueeze(0) / t, counted, 1.0)

    def _write_back(self) -> None:
        pairs = zip(self.network.parameters(), self.learning.parameters(), strict=True)
        for weight, learnt in pairs:
            with torch.inference_mode(weight.is_inference()), torch.no_grad():
                weight.copy_(learnt)
