"""transformers' Trainer with a rate in proportion to a tensor's size, a schedule by the clock, a target to learn from.

Independent of recipes; the texts to learn on come from `train.sets`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, Seq2SeqTrainer, TrainerCallback

from specbench import border
from specbench.border import Unreadable
from specbench.train.logits import Logits
from specbench.train.losses import distillation_loss, mean_overlap

SHORT_FILE = 1000  # bytes
ALPHA_EVERY = 5  # steps: three passes over the vocabulary each time
NOT_DECAYED = ("norm", "bias", "ln_", "shared", "wte", "wpe")


def groups_by_size(model: PreTrainedModel, lr: float, weight_decay: float) -> list[dict[str, object]]:
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


def seconds_in(file: Path) -> float | None:
    """The seconds that `Clock` has kept in a file; None, said on stderr, if it holds no number of seconds."""
    try:
        text = border.read_text(file, SHORT_FILE).strip()
        seconds = float(border.parse(text, float))
    except Unreadable as error:
        print(f"{file}: is damaged ({error}); the time before is not known", file=sys.stderr)
        return None
    return seconds


class Clock(TrainerCallback):
    """Keeps a training's seconds, over resumptions, in a file beside the checkpoints, written whenever one is."""

    def __init__(self, file: Path, most_s: float | None = None) -> None:
        """`most_s`: training ends when it has taken so many seconds, with a checkpoint."""
        self.file, self.most_s = file, most_s
        self.seconds = self.before = 0.0
        self.started: float | None = None

    def share(self) -> float:
        """The part of its time that has passed, from 0 to 1; 0 before training begins, or if it has no end."""
        if self.started is None or self.most_s is None:
            return 0.0
        return min(1.0, (self.before + time.monotonic() - self.started) / self.most_s)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        resumed = state.global_step > 0 and self.file.is_file()
        self.before = (seconds_in(self.file) or 0.0) if resumed else 0.0
        self.started = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.share() >= 1:
            control.should_training_stop = control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._keep()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._keep()

    def _keep(self) -> None:
        if self.started is not None:
            self.seconds = self.before + time.monotonic() - self.started
        self.file.write_text(f"{self.seconds:.3f}\n")


class SizedTrainer(Seq2SeqTrainer):
    """A Trainer for pairs and for text; `lr_by_size` makes its optimiser AdamW over `groups_by_size`."""

    optimizer: torch.optim.Optimizer | None

    def __init__(self, *args: Any, lr_by_size: bool = False, clock: Clock | None = None, **kwargs: Any) -> None:
        """`clock`: one that ends the training also moves its schedule on."""
        super().__init__(*args, **kwargs)
        self.clock, self.told_s = clock, time.monotonic()
        self.tokens: int | torch.Tensor = 0  # since the last line of losses
        # Now, while the model is as it was built: a resumed training loads trained weights before its optimiser.
        told = self.args
        self.groups = groups_by_size(self.model, told.learning_rate, told.weight_decay) if lr_by_size else None

    def create_optimizer(self, model: PreTrainedModel | None = None) -> torch.optim.Optimizer:
        if self.optimizer is not None:
            return self.optimizer
        if self.groups is None:
            return cast(torch.optim.Optimizer, super().create_optimizer(model))
        betas = (self.args.adam_beta1, self.args.adam_beta2)
        self.optimizer = torch.optim.AdamW(self.groups, betas=betas, fused=True)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        schedule = super().create_scheduler(num_training_steps, optimizer)
        if self.clock is not None and self.clock.most_s is not None and isinstance(schedule, LambdaLR):
            schedule.lr_lambdas = [by_clock(one, num_training_steps, self.clock) for one in schedule.lr_lambdas]
        return schedule

    def training_step(self, model: nn.Module, inputs: dict[str, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        # Counted on the device: reading the number here would make each step wait for the step before it.
        self.tokens = self.tokens + inputs["attention_mask"].sum()
        return super().training_step(model, inputs, *args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            now = time.monotonic()
            logs = {**logs, "tokens_per_second": round(int(self.tokens) / max(now - self.told_s, 1e-9))}
            self.tokens, self.told_s = 0, now
        super().log(logs, start_time)


def by_clock(factor: Callable[[int], float], steps: int, clock: Clock) -> Callable[[int], float]:
    """A schedule of `steps` steps that is also at its end when the time of `clock` is over."""

    def moved_on(step: int) -> float:
        return factor(max(step, min(steps, round(clock.share() * steps))))

    return moved_on


LogitsOf = Callable[[torch.Tensor, torch.Tensor], Logits]  # of the texts of these numbers, and with these tokens


class DistillTrainer(SizedTrainer):
    """A `SizedTrainer` whose loss also asks the target; the mean α of the batches is logged beside the loss."""

    def __init__(
        self, *args: Any, target: PreTrainedModel, kl_weight: float, kept: LogitsOf | None = None, **kwargs: Any
    ) -> None:
        """`kept`: the target's logits, which it then does not compute again."""
        super().__init__(*args, **kwargs)
        self.kept = kept
        self.target = target.to(self.args.device).eval().requires_grad_(False)
        self.kl_weight = kl_weight
        self._alphas: list[torch.Tensor] = []

    def compute_loss(
        self,
        model: PreTrainedModel,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        row = inputs.pop("row", None)
        labels, given = inputs["labels"], inputs
        if not self.target.config.is_encoder_decoder:  # with labels the models would compute a loss of their own
            given = {name: value for name, value in inputs.items() if name != "labels"}
        q = model(**given)
        p_logits: Logits
        if self.kept is None or row is None:
            with torch.no_grad():
                p_logits = self.target(**given).logits
        else:
            p_logits = self.kept(row, inputs["input_ids"])
        q_logits = q.logits
        if not self.target.config.is_encoder_decoder:  # logits at t are about token t + 1
            p_logits, q_logits, labels = p_logits[:, :-1], q_logits[:, :-1], labels[:, 1:]
        loss = distillation_loss(p_logits, q_logits, labels, self.kl_weight)
        if model.training and self.state.global_step % ALPHA_EVERY == 0:
            self._alphas.append(mean_overlap(p_logits, q_logits, labels))
        return (loss, q) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if self._alphas and "loss" in logs:
            logs = {**logs, "alpha": round(torch.stack(self._alphas).mean().item(), 4)}
            self._alphas.clear()
        super().log(logs, start_time)


LEVELS = 256


class ByteDropout(nn.Dropout):
    """`nn.Dropout` with its rate rounded to 1/256: a random byte per element in place of a random float.

    torch draws dropout masks on the CPU one number at a time and on one core, which takes a third of a training step at
    the size of the shipped models.
    """

    def __init__(self, p: float) -> None:
        super().__init__(p)
        self.dropped = round(p * LEVELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or self.dropped == 0:
            return x
        # One 64-bit draw gives eight bytes; random_(low, None) draws from the whole range of int64.
        draws = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
        keep = (draws.view(torch.uint8)[: x.numel()] >= self.dropped).view(x.shape)
        return x * keep.to(x.dtype).mul_(LEVELS / (LEVELS - self.dropped))


def use_byte_dropout(model: nn.Module) -> None:
    """Replace every `nn.Dropout` inside `model`."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Dropout:
                setattr(module, name, ByteDropout(child.p))
