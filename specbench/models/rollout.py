"""Several steps of a model as one piece of work: each reads the token that was chosen from the logits before it.

Tokens, lengths and random numbers are tensors, and nothing is asked of the host, so that a draft's gamma steps, with
standardising and choosing, can be captured as one graph.

Shapes: L tokens that are read first, G steps, C slots of the self-attention buffers, V tokens of the vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.models.layout import ragged
from specbench.models.program import Program, Step
from specbench.sampling import Choice


class Rollout:
    """`steps` steps over `buffers`, the first over `count` tokens; its inputs and its rows of probabilities."""

    def __init__(
        self,
        program: Program,
        choice: Choice,
        count: int,
        steps: int,
        numbers_1C: Tensor,
        buffers: Sequence[Tensor],
    ) -> None:
        device = numbers_1C.device
        self.choice, self._numbers_1C, self.buffers = choice, numbers_1C, list(buffers)
        self.slots = count + steps - 1  # that it writes to
        self.ids_1L = torch.zeros(1, count, dtype=torch.long, device=device)
        self.length_1 = torch.zeros(1, dtype=torch.long, device=device)
        self.source_length_1 = torch.ones(1, dtype=torch.long, device=device)
        self.uniform_G = self.rows_GV = None
        if choice.draws:
            self.uniform_G = torch.zeros(steps, dtype=torch.float64, device=device)
            self.rows_GV = torch.zeros(steps, choice.vocabulary_size, device=device)
        first = program.one if count == 1 else program.several
        self._steps = [first, *[program.one] * (steps - 1)]
        self._of_sizes = {
            step: step.of_sizes(*self._inputs(ids_1L, self.length_1))
            for step, ids_1L in ((first, self.ids_1L), (program.one, self.ids_1L[:, :1]))
        }

    def work(self) -> Tensor:
        """The chosen tokens [G]; the rows that they were drawn from go into `rows_GV`."""
        ids_1L, length_1 = self.ids_1L, self.length_1
        fixed: dict[Step, tuple[Tensor, ...]] = {}
        tokens: list[Tensor] = []
        for index, step in enumerate(self._steps):
            inputs = self._inputs(ids_1L, length_1)
            if step not in fixed:
                of_sizes = self._of_sizes[step]
                fixed[step] = (*of_sizes, *step.of_source(*inputs, *of_sizes))
            logits_1LV = step.placed(fixed[step], *inputs)
            uniform_1 = None if self.uniform_G is None else self.uniform_G[index : index + 1]
            token_1, row_1V = self.choice.on_device(logits_1LV[0, -1:], uniform_1)
            if self.rows_GV is not None and row_1V is not None:
                self.rows_GV[index : index + 1].copy_(row_1V)
            tokens.append(token_1)
            length_1 = length_1 + ids_1L.shape[1]
            ids_1L = token_1.clamp(min=0).unsqueeze(0)  # NOT_DRAWN is no token
        return torch.cat(tokens)

    def _inputs(self, ids_1L: Tensor, length_1: Tensor) -> list[Tensor]:
        layout = ragged(length_1, ids_1L.shape[1], self._numbers_1C, self._numbers_1C)
        return [ids_1L, *layout.tensors, self.source_length_1, *self.buffers]
