"""How a network runs over several rows at once, each with its own layout: as it is, or as a captured step.

Shapes: B rows, L new tokens of a row, C slots of the self-attention buffers, S of the cross-attention buffers, V
logits.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import EncoderDecoderCache

from specbench.engine.buffers import TensorCache
from specbench.engine.cache_names import cache_argument
from specbench.engine.capture.marking import cache_over, replaced
from specbench.engine.capture.program import Program, what_it_caches
from specbench.engine.clock import RUNS
from specbench.engine.experts import Experts
from specbench.engine.layout import Layout
from specbench.engine.placement import Placement
from specbench.engine.reads import Read
from specbench.engine.session import Marking, Now, Prompt, Session


class StepsOfRows(Protocol):
    """One run of a network over rows of buffers."""

    shapes: dict[str, list[tuple[int, int]]]  # (heads, channels) of each buffer for 'self' and 'cross' attention
    cache_dtype: torch.dtype

    def encode(self, source_1S: Tensor) -> list[Tensor]:
        """Cross-attention keys and values of one source, layer by layer."""
        ...

    def run(self, rows: "RowsRead") -> Tensor:
        """Logits [B, L, V]; with `last_row` nothing of use: only the caches count."""
        ...


class RowsRead(NamedTuple):
    """What a run reads: the new tokens of B rows, where they stand, and the buffers.

    New keys and values are written to `own`, the buffers of self-attention; `of_source`, of cross-attention.
    """

    ids_BL: Tensor
    layout: Layout
    source_lengths: Sequence[int]
    own: Sequence[Tensor]
    of_source: Sequence[Tensor]
    last_row: bool  # whether it reads a prompt, whose logits nobody needs


class BatchableModel(Protocol):
    """The interface of a model that a batch uses."""

    device: torch.device
    vocabulary_size: int
    eos_ids: frozenset[int]
    longest: int | None
    operations: float
    now: Now
    mark: Marking | None
    experts: Experts | None
    state_width: int
    tap_width: int
    states_of_prompt: bool
    readable: int
    beginnings: Any  # that sessions copy
    window: Any  # what its sessions attend to; None: to everything

    def start(self, prompt: Prompt) -> Session: ...

    def repeat(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor: ...

    def capture_repeated(self) -> None: ...

    def steps_of_rows(self, rows: int) -> StepsOfRows:
        """How the network runs over up to `rows` rows. Raises UserError if it cannot."""
        ...

    def require_trees(self) -> None:
        """Raise UserError if the model cannot read a tree."""
        ...

    def require_batches(self, rows: int) -> None:
        """Raise UserError if the model cannot read rows of several lengths."""
        ...

    @property
    def reads_at_once(self) -> bool:
        """Whether it reads for several of its own sessions in one run."""
        ...

    def read_at_once(self, reads: Sequence[Read]) -> list[Tensor]:
        """The results of `Session.extend` for each of `reads`, of different sessions, if one run can read them."""
        ...


class EagerSteps:
    """The `transformers` module, its cache a view of the rows' buffers."""

    def __init__(self, network: Any, placement: Placement) -> None:
        self._network, self._placement = network, placement
        with torch.inference_mode():
            own, of_source = what_it_caches(network)
        self.shapes = {
            kind: [(states.shape[1], states.shape[3]) for states in cached]
            for kind, cached in (("self", own), ("cross", of_source))
        }
        self.cache_dtype: torch.dtype = own[0].dtype

    def encode(self, source_1S: Tensor) -> list[Tensor]:
        _, states = what_it_caches(self._network, source_1S)
        return states

    def run(self, rows: RowsRead) -> Tensor:
        ids_BL, layout, source_lengths, own, of_source, last_row = rows
        cache: Any = cache_over(own, layout.slots_BL, layout.new_positions_BL[0, 0])
        inputs: dict[str, object] = {"input_ids": ids_BL}
        if of_source:
            # The cache returns the buffers instead of its input, so that a source of one token suffices.
            width = self._network.get_encoder().config.d_model
            nothing_B1D = torch.zeros(len(ids_BL), 1, width, dtype=self.cache_dtype, device=ids_BL.device)
            slots_S = torch.arange(of_source[0].shape[2], device=ids_BL.device)
            seen_B11S = (slots_S < torch.tensor(source_lengths, device=ids_BL.device)[:, None])[:, None, None, :]
            lowest = torch.finfo(self.cache_dtype).min
            inputs = {
                "decoder_input_ids": ids_BL,
                "encoder_outputs": (nothing_B1D,),
                "attention_mask": torch.where(seen_B11S, 0.0, lowest).to(self.cache_dtype),
            }
            cache = EncoderDecoderCache(cache, replaced(of_source))
        if last_row and not of_source:
            inputs["logits_to_keep"] = 1
        with self._placement.applying(layout) as options:
            output = RUNS.run(
                self._network, use_cache=True, **{cache_argument(self._network): cache}, **inputs, **options
            )
        logits_BLV: Tensor = output.logits
        return logits_BLV[:, -1:] if last_row else logits_BLV


class CapturedSteps:
    """Captured steps: one for a single row, another for any number of rows."""

    most_of_prompt: int | None = None  # how many tokens of a prompt are read at once at most

    def __init__(self, alone: Program, several: Program) -> None:
        self._programs = alone, several
        self.shapes, self.cache_dtype = alone.shapes, alone.cache_dtype
        self._fixed, self._sources = TensorCache(), TensorCache()

    def encode(self, source_1S: Tensor) -> list[Tensor]:
        encode = self._programs[0].encode
        assert encode is not None
        return encode(source_1S)

    def run(self, rows: RowsRead) -> Tensor:
        ids_BL, layout, source_lengths, own, of_source, last_row = rows
        count = ids_BL.shape[1]
        if last_row and self.most_of_prompt is not None and count > self.most_of_prompt:
            for first in range(0, count, self.most_of_prompt):
                part = slice(first, first + self.most_of_prompt)
                logits_B1V = self.run(rows._replace(ids_BL=ids_BL[:, part], layout=layout.of_tokens(part)))
            return logits_B1V
        program = self._programs[len(ids_BL) > 1]
        step = program.one if count == 1 else program.prompt if last_row else program.several
        slots = (own[0].shape[2], of_source[0].shape[2] if of_source else 0)
        device = ids_BL.device
        (lengths_B,) = self._once(
            self._sources, tuple(source_lengths), lambda: (torch.tensor(source_lengths, device=device),)
        )
        inputs = (ids_BL, *layout.tensors, lengths_B, *own, *of_source)
        fixed = self._once(self._fixed, (id(step), *ids_BL.shape, *slots), lambda: step.of_sizes(*inputs))
        inputs += fixed
        key = (id(step), count, *slots, *source_lengths)
        inputs += self._once(self._sources, key, lambda: step.of_source(*inputs))
        return RUNS.run(step.run, *inputs, *step.of_layout(*inputs))

    @staticmethod
    def _once(
        cached: TensorCache, key: tuple[int, ...], compute: Callable[[], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        found = cached.get(key)
        return cached.put(key, compute()) if found is None else found


class RowByRow(CapturedSteps):
    """The captured step of a single row, for each row in turn."""

    def run(self, rows: RowsRead) -> Tensor:
        ids_BL, layout, source_lengths, own, of_source, last_row = rows
        each = [slice(row, row + 1) for row in range(len(ids_BL))]
        return torch.cat([
            super(RowByRow, self).run(RowsRead(
                ids_BL[one], layout.of_row(one.start), source_lengths[one], [buffer[one] for buffer in own],
                [buffer[one] for buffer in of_source], last_row,
            ))
            for one in each
        ])  # fmt: skip
