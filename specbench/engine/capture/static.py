"""A captured step over preallocated caches: the same tokens as `eager`, without the model's Python."""

import time
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from specbench.engine.batch_steps import CapturedSteps
from specbench.engine.buffers import CACHED_OF_TREES, MOST_STACKED, BufferPool, TensorCache
from specbench.engine.capture.fusing import used
from specbench.engine.capture.invariant import lower_invariant
from specbench.engine.capture.lower import Lowering, PackedWeights, compiled, lower
from specbench.engine.capture.program import Program, rows_agree
from specbench.engine.capture.saved_captures import forget
from specbench.engine.capture.static_sessions import MOST_ROWS, StaticSession, WindowedStatic
from specbench.engine.eager.model import PLAIN, EagerModel, SessionTraits
from specbench.engine.experts import Experts
from specbench.engine.session import Prompt
from specbench.errors import UserError

FIRST_CAPACITY = 64
SOURCE_STEP = 16  # cross-attention buffers come in multiples of this
# Filled up: there a step is bound by reading weights, and one shape means one choice of kernels.
ROWS_ON_A_GPU = MOST_ROWS
USUAL_COUNTS = range(1, 9)  # tokens of one run whose positions are looked up in advance


class StaticModel(EagerModel):
    """An `EagerModel` whose sessions run a captured step."""

    engine = "static"
    lowering: Lowering = staticmethod(lower)
    invariant_lowering: Lowering = staticmethod(lower_invariant)
    prompt_lowering: Lowering = staticmethod(lower)
    most_rows: int | None = MOST_ROWS  # of one invariant step; longer blocks are read in parts
    rows: int  # the fewest that a step reads; what is missing is filled up
    grows_in_place = True

    def __init__(
        self,
        network: Any,
        vocabulary_size: int,
        eos_ids: frozenset[int],
        packed: PackedWeights | None = None,
        invariant: bool = False,
        traits: SessionTraits = PLAIN,
    ) -> None:
        """`invariant`: with kernels whose rows do not depend on how many are read at once."""
        super().__init__(network, vocabulary_size, eos_ids, traits)
        began = time.perf_counter()
        self.packed, self.invariant = packed or PackedWeights(), invariant
        self.rows = ROWS_ON_A_GPU if invariant and self.device.type != "cpu" else 1
        lowering = self.invariant_lowering if invariant else self.lowering
        self.program: Program = self._captured(lowering)
        self.placement = self.program.placement
        if self.engine not in ("compile", "cudagraph"):  # whose runs are none of Python's
            self.experts = Experts.of(network, self.packed.reads)
        if (kernels := used(self.program.runs)) or self.device.type == "cuda":
            self.report.gpu_kernels = kernels
        self.pool = BufferPool(self.program.shapes, self.program.cache_dtype, self.device)
        self.sources, self.positions, self.tree_positions = TensorCache(), TensorCache(), TensorCache(CACHED_OF_TREES)
        self._numbers: dict[int, Tensor] = {}
        self._single: dict[int, Tensor] = {}
        self._blank: dict[int, Tensor] = {}
        self._prepare()
        self.report.warmup_s = time.perf_counter() - began

    def _captured(self, lowering: Lowering) -> Program:
        """The network's program."""
        dtype = self._cache_dtype(self.network)
        return Program.of(self.network, dtype, lowering, self.packed, of_prompt=self.prompt_lowering)

    def _prepare(self) -> None:
        with torch.inference_mode():
            StaticSession(self, Prompt((0,) if self.is_encoder_decoder else (), (0,))).look_up(USUAL_COUNTS)

    def _same_engine(self, network: Any) -> "StaticModel":
        made = type(self)(network, self.vocabulary_size, self.eos_ids, self.packed, self.invariant)
        made.rows = self.rows
        return made

    def weights_changed(self) -> None:
        self.packed.refresh()
        for model in self._shallow.values():
            model.weights_changed()
        if self.program.encode is not None:
            self.program.encode.biases_of_size.clear()
        self._forget_placed()

    def _forget_placed(self) -> None:
        """Drop cached masks, positions and position biases, and recompute them for usual sizes."""
        for cache in (self.sources, self.positions, self.tree_positions):
            cache.clear()
        self._prepare()

    def set_least_rows(self, rows: int) -> None:
        """Let each step from now on read at least so many rows; missing rows are padding."""
        if rows != self.rows:
            self.rows = rows
            self._forget_placed()

    def steps_of_rows(self, rows: int) -> CapturedSteps:
        self.require_batches(rows)
        return CapturedSteps(self.program, self.program if rows == 1 else self._program_of_rows)

    @cached_property
    def _program_of_rows(self) -> Program:
        """Raises UserError if its logits differ from the logits of single rows."""
        for _ in range(2):
            made = Program.of(self.network, self.program.cache_dtype, self.lowering, self.packed, one_row=False)
            if self.engine == "compile":  # which would compile for the shapes that are tried, in minutes
                return made
            if rows_agree(self.program, made, self.vocabulary_size, self.network.dtype, self.device):
                return made
            if made.cached is None:
                break
            forget(made.cached)  # a capture that is made now may be right
        raise UserError(
            f"engine={self.engine}: the compiled step of several prompts differs from the step of one; use batch=1 or "
            "engine=eager"
        )

    @staticmethod
    def _cache_dtype(network: Any) -> torch.dtype:
        """On CPU attention over bf16 is slower than over fp32, which also is the more exact; see kernels.attend."""
        dtype: torch.dtype = network.dtype
        return torch.promote_types(dtype, torch.float32) if network.device.type == "cpu" else dtype

    def start(self, prompt: Prompt) -> StaticSession:
        return StaticSession(self, prompt) if self.window is None else WindowedStatic(self, prompt, self.window)

    def capacity(self, needed: int) -> int:
        """Slots of self-attention buffers with room for `needed` tokens: the next power of two, or of many 1/8 more."""
        if needed > MOST_STACKED and self.grows_in_place:
            step = 1 << (needed.bit_length() - 4)
            return -(-needed // step) * step
        return max(FIRST_CAPACITY, 1 << (needed - 1).bit_length())

    def source_slots(self, needed: int) -> int:
        """Slots of cross-attention buffers for a source of `needed` tokens."""
        return -(-needed // SOURCE_STEP) * SOURCE_STEP

    def blank(self, count: int) -> Tensor:
        """Any `count` tokens [1, L], the same tensor at every call."""
        if count not in self._blank:
            self._blank[count] = self.ids([0] * count)
        return self._blank[count]

    def number(self, value: int) -> Tensor:
        """`value` as a tensor [1]; the same tensor at every call."""
        if value not in self._single:
            self._single[value] = torch.tensor([value], device=self.device)
        return self._single[value]

    def numbers(self, slots: int) -> Tensor:
        """0 ... `slots` - 1, as one row [1, `slots`]; the same tensor at every call."""
        if slots not in self._numbers:
            self._numbers[slots] = torch.arange(slots, device=self.device).unsqueeze(0)
        return self._numbers[slots]


class CompiledModel(StaticModel):
    """A `StaticModel` whose steps torch.compile makes ready. Needs a C++ compiler, and a minute or so in all."""

    engine = "compile"
    lowering: Lowering = staticmethod(compiled)
