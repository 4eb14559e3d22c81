"""The reading of a prompt or a source, in native programs or in torch's operations."""

import contextlib
import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from specbench.engine.capture.lower import PackedWeights, lower
from specbench.engine.capture.nodes import aten, calls, value
from specbench.engine.capture.torch_private import LazyGraphModule, computes_bf16
from specbench.engine.native.lowering import lower_native
from specbench.engine.native.native_run import NativeRun
from specbench.engine.native.whole import WholeReading
from specbench.engine.operations import kernels
from specbench.kernels import library

PROMPT_ROWS = 512  # tokens of a text that our kernels read at once: half as many take 2 to 4% longer
LOGITS_ROWS = 256  # the same where each has logits, which take room


class LoweredPrompt:
    """The reading of a prompt or a source in native programs, or in torch's operations if these are faster.

    Torch's attention goes through the keys once for many tokens. It saves more of the time the longer the prompt, and
    less the wider the model. In bf16 with matrix registers (2 cores with AMX) both take equally long at 150 tokens of
    128 channels and at 310 of 256. With 576 channels ours take 0.5 to 0.7 times as long up to 768 tokens: in this case
    ours read up to as many tokens as the model is wide. Otherwise they read up to `FEWEST`: on 2 cores with AVX-512
    ours take 0.2 to 0.9 times as long up to 64 tokens, equally long at 130, and 1.05 to 1.4 times at 250 to 500. In
    bf16 on a processor without instructions for it, ours are ten times as fast at any length. If ours also go through a
    cache once for many tokens, and there are no matrix registers, they read prompts of any length.
    """

    FEWEST, MOST = 128, 512  # tokens

    def __init__(self, module: GraphModule, packed: PackedWeights, one_token: bool) -> None:
        self._module = LazyGraphModule(module, copy.deepcopy(module.graph))
        self._rest = packed, one_token
        dtypes = {found.dtype for node in module.graph.nodes if isinstance(found := value(node), Tensor)}
        wide = [self.FEWEST]
        if torch.bfloat16 in dtypes and library().uses_tiles() and not packed.level_bits:
            wide += [value(node).shape[-1] for node in calls(module, aten.embedding.default)][:1]
        self._most = min(self.MOST, max(wide))
        self._native: Callable[..., Any] | None = None
        with contextlib.suppress(NotImplementedError):
            self._native = lower_native(module, packed, one_token)
        slow = torch.bfloat16 in dtypes and not computes_bf16()
        fast = not library().uses_tiles() and _reads_in_blocks(module)
        self.is_always_native = self._native is not None and (slow or fast)

    @cached_property
    def _torchs(self) -> Callable[..., Any]:
        """Made when it is first needed: its weights are laid out once more."""
        return lower(self._module, *self._rest)

    def is_native_for(self, tokens: int) -> bool:
        """Whether the native program reads so many tokens, not torch's operations."""
        return self._native is not None and (self.is_always_native or tokens <= self._most)

    def _for(self, read: Tensor) -> Callable[..., Any]:
        """The native program or torch's operations, by the number of tokens."""
        is_native = self.is_native_for(read.shape[1])
        return self._native if is_native and self._native is not None else self._torchs

    def __call__(self, *inputs: Tensor) -> Any:
        return self._for(inputs[0])(*inputs)

    def into(self, buffers: Sequence[Tensor], *inputs: Tensor) -> bool:
        """Write a source's keys and values into the first slots of `buffers`; False if torch is to read it."""
        reading = self._for(inputs[0])
        if not isinstance(reading, WholeReading):
            return False
        reading.into(buffers, *inputs)
        return True


def _reads_in_blocks(module: GraphModule) -> bool:
    """Whether all attention of a lowered `module` goes through a cache once for many tokens."""
    runs = [node.target for node in module.graph.nodes if isinstance(node.target, NativeRun)]
    found = [one for run in runs for one in run.attends_in_blocks]
    return all(found) and not calls(module, kernels.attend, kernels.attend_alone)
