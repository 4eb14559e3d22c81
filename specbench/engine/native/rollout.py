"""Several steps of one program in one call, each of which reads the token chosen after the step before."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.engine.clock import RUNS
from specbench.engine.native.native_run import BoundCall, lines
from specbench.kernels import library
from specbench.kernels.structures import RawChoice, RawSampling, Step
from specbench.sampling import TokenChoice


class Rollout:
    """Steps of one program, each of which reads the token chosen after the step before; made once, run often."""

    def __init__(self, calls: Sequence[BoundCall], ids: int, choice: TokenChoice, eos_ids: frozenset[int]) -> None:
        """The second and later calls have one token, `ids` is the number of the address of a call's tokens."""
        self._calls, self._ids, self.choice, self._run = calls, ids, choice, calls[0].program
        run, steps, sampling = self._run, len(calls), choice.sampling
        self._tokens = (ctypes.c_int64 * steps)()
        self._ends = (ctypes.c_int64 * len(eos_ids))(*sorted(eos_ids))
        self._steps = (Step * steps)(*(call.step for call in calls))
        self._arena = lines(run.floats * max(call.rows for call in calls))
        self._logits = lines(run.widths[0] * calls[0].rows)
        self._raw = RawChoice(
            None, run.dtype == torch.bfloat16, run.widths[0], choice.vocabulary_size,
            RawSampling.of(sampling.temperature, sampling.top_k, sampling.top_p),
            None, None, ctypes.addressof(self._tokens), ctypes.addressof(self._ends), len(self._ends),
        )  # fmt: skip

    def __call__(self, uniform_G: Tensor | None) -> tuple[list[int], Tensor | None]:
        """The tokens that the steps choose, up to the first that ends a text, and the rows [G, V] they were drawn from.

        The last token is NOT_DRAWN if its row is not finite. `uniform_G`: random numbers for the choices; None at
        T = 0.
        """
        calls, raw, threads = self._calls, self._raw, torch.get_num_threads()
        size = max(call.scratch for call in calls)
        shared = max(call.shared for call in calls)
        start, scratch = self._run.room(self._arena + self._logits, size * threads + shared)
        raw.logits = start + 4 * self._arena
        for index, call in enumerate(calls):
            call.addresses[len(call.addresses) - 1] = raw.logits
            if index:
                call.addresses[self._ids] = raw.tokens + 8 * (index - 1)
        rows_GV = None
        if uniform_G is not None:
            rows_GV = torch.empty(len(calls), self.choice.vocabulary_size)
            raw.uniforms, raw.rows = uniform_G.data_ptr(), rows_GV.data_ptr()
        steps = len(calls)
        chosen = RUNS.run(library().rollout, self._steps, steps, ctypes.byref(raw), start, scratch, size, threads)
        return self._tokens[:chosen], None if rows_GV is None else rows_GV[:chosen]
