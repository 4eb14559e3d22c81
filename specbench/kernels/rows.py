"""Standardised rows, draws and verdicts on rows in the CPU's memory, by `kernels.c`.

For a vocabulary of 8,000 torch takes 140 us to soften a row and draw from it, and 80 more to verify a proposal: as much
as half a step of a small model. What is not for rows that the kernels read, or for a machine without them, its caller
does in torch.

Shapes: G drafted tokens, L positions, V tokens of the vocabulary.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specbench.deferred import torch
from specbench.kernels import NotCompiled, found, is_available, library
from specbench.kernels.structures import Kind, RawChain, RawRule, RawSampling

if TYPE_CHECKING:
    from torch import Tensor


def standardised(
    logits_LV: Tensor, temperature: float, top_k: int | None, top_p: float | None, size: int
) -> Tensor | None:
    """`sampling.standardise` at T > 0: probabilities [L, size], fp32; NaN for a row without a finite maximum.

    None: not for these rows, or not on this machine.
    """
    if logits_LV.dtype not in (torch.float32, torch.bfloat16) or not _is_read(logits_LV) or logits_LV.requires_grad:
        return None
    if isinstance(kernels := found(), NotCompiled):
        return None
    rows, is_short = len(logits_LV), logits_LV.dtype == torch.bfloat16
    out_LV, how = torch.empty(rows, size), RawSampling.of(temperature, top_k, top_p)
    read, written = logits_LV.data_ptr(), out_LV.data_ptr()
    threads = torch.get_num_threads()
    kernels.standardise(read, is_short, logits_LV.stride(0), written, rows, size, ctypes.byref(how), threads)
    return out_LV


def likeliest(logits_LV: Tensor, size: int, rows: int) -> list[int] | None:
    """The first of the highest of the first `size` logits in each of the last `rows` rows; -1 without a finite one.

    None: not for these rows, or not on this machine.
    """
    if logits_LV.dtype not in (torch.float32, torch.bfloat16) or not _is_read(logits_LV):
        return None
    if isinstance(kernels := found(), NotCompiled):
        return None
    count, width = logits_LV.shape
    stride, at, tokens = logits_LV.stride(0), logits_LV.data_ptr(), (ctypes.c_int64 * rows)()
    first = at + max(0, count - rows) * stride * logits_LV.element_size()
    kernels.likeliest(first, logits_LV.element_size() == 2, stride, min(rows, count), min(size, width), tokens)
    return list(tokens[: min(rows, count)])


def drawn(weights_LV: Tensor, uniform_L: Tensor) -> Tensor | None:
    """One token [L] from each row of fp32 weights, -1 from one that is not finite; `uniform_L` is fp64.

    None: not for these rows, or not on this machine.
    """
    if not is_whole(weights_LV) or not uniform_L.is_contiguous() or isinstance(kernels := found(), NotCompiled):
        return None
    rows, size = weights_LV.shape
    tokens_L = torch.empty(rows, dtype=torch.long)
    kernels.draw(weights_LV.data_ptr(), rows, size, uniform_L.data_ptr(), tokens_L.data_ptr())
    return tokens_L


def are_verified(p_GV: Tensor, q_GV: Tensor | None) -> bool:
    """Whether `verified` reads these rows, on this machine."""
    return is_whole(p_GV) and (q_GV is None or is_whole(q_GV)) and is_available()


@dataclass(frozen=True)
class RuleInC:
    """An acceptance rule of verdicts.h and its options, of which each kind reads its own."""

    kind: Kind = Kind.EXACT
    lenience: float = 1.0
    epsilon: float = 0.0
    delta: float = 0.0
    alpha: float = 0.0
    beta: int = 0

    @property
    def draws_at_each(self) -> bool:
        """Whether it draws a token at each place, and tests none with a random number of its own."""
        return self.kind == Kind.MATCH

    def raw(self) -> RawRule:
        return RawRule(self.kind, self.beta, self.lenience, self.epsilon, self.delta, self.alpha)


ALGORITHM_1 = RuleInC()


def verified(
    rule: RuleInC, p_GV: Tensor, q_GV: Tensor | None, drafted_G: Sequence[int], trial_G: Tensor, next_N: Tensor,
    least: float,
) -> tuple[int, int]:  # fmt: skip
    """How many of `drafted_G` the rule accepts, and the token that follows them: -1 if its law is not finite.

    Args:
        rule: the rule.
        p_GV: the target's rows, at least one more than there are drafted tokens.
        q_GV: the draft's rows; None if each token had all mass.
        drafted_G: the drafted tokens.
        trial_G: the random number of each test, fp32.
        next_N: the random number of the draw after them, or with `draws_at_each` one for each place, fp64.
        least: the mass of a residual that is more than rounding.

    Raises:
        ValueError: there are too few rows or numbers, or a token is not in the vocabulary.
    """
    count, size = len(drafted_G), p_GV.shape[-1]
    fits = len(p_GV) > count and (q_GV is None or (len(q_GV) >= count and q_GV.shape[-1] == size))
    numbers = len(next_N) > count if rule.draws_at_each else len(trial_G) >= count and len(next_N) > 0
    if not fits or not numbers or not all(0 <= token < size for token in drafted_G):
        raise ValueError(f"rows {tuple(p_GV.shape)} of p do not fit q or the drafted tokens {list(drafted_G)}")
    room_V, token = torch.empty(size), ctypes.c_int64()
    drafted = (ctypes.c_int64 * count)(*drafted_G)
    chain = RawChain(
        p_GV.data_ptr(), None if q_GV is None else q_GV.data_ptr(), ctypes.addressof(drafted), count, size,
        trial_G.data_ptr(), next_N.data_ptr(), least, room_V.data_ptr(),
    )  # fmt: skip
    accepted = library().verify(ctypes.byref(rule.raw()), ctypes.byref(chain), ctypes.byref(token))
    return accepted, token.value


def is_whole(rows_LV: Tensor) -> bool:
    """Whether these are rows of floats one after another."""
    return rows_LV.dtype == torch.float32 and _is_read(rows_LV) and rows_LV.is_contiguous()


def _is_read(rows_LV: Tensor) -> bool:
    """Whether the kernels can read these rows: numbers in the CPU's memory, not in a graph being captured."""
    return type(rows_LV) is torch.Tensor and rows_LV.is_cpu and rows_LV.dim() == 2 and rows_LV.stride(-1) == 1
