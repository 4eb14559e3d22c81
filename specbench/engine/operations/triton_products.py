"""Products of a few rows in Triton: with their epilogue, and with the choice of the next token.

Each sum over channels is cut into the same parts for any number of rows, and the parts are added up in one order, by
the program that is the last to finish a block of outputs: an integer counter says which. No number is added atomically.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor, empty

from specbench.engine.operations.triton import KINDS, NO_ACTIVATION, activated, early, wait_for_predecessor

TILE = 8192  # weights that a program holds
PART = 512  # channels of a row that a program of `linear_rows` adds up
OF_VOCABULARY = 1024  # tokens that a program of `drawn_row` standardises
PARTS_AT_ONCE = 1024  # partial results that are read at a time
MOST_BLOCKS = 2**16  # of outputs of one kernel


@lru_cache
def _tickets(device: torch.device) -> Tensor:
    """Counters of programs that have finished, one a block of outputs. Each kernel leaves them at 0 for the next."""
    with torch.inference_mode(False):
        return torch.zeros(MOST_BLOCKS, dtype=torch.int32, device=device)


def linear_rows(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, residual: Tensor | None
) -> Tensor:
    """A linear map of a few tokens [1, L, E], its activation, and a sum with `residual`: `fused.linear_rows`.

    A program adds up PART channels of a block of outputs, for all tokens in turn: it reads its weights once.
    """
    x, width, outputs = x.contiguous(), x.shape[-1], len(weight)
    tokens, part = x.numel() // width, min(PART, triton.next_power_of_2(width))
    rows, splits = TILE // part, triton.cdiv(width, part)
    blocks = triton.cdiv(outputs, rows)
    made = empty((*x.shape[:-1], outputs), dtype=x.dtype, device=x.device)
    parts = empty((splits, tokens, outputs), dtype=torch.float32, device=x.device)
    added = made if residual is None else residual.contiguous()
    _linear_rows[(blocks, splits)](
        x, weight, weight if bias is None else bias, added, made, parts, _tickets(x.device), tokens, width, outputs,
        *weight.stride(), SPLITS=splits, PART=part, ROWS=rows,
        KIND=NO_ACTIVATION if activation is None else KINDS[activation], HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None, **early(x),
    )  # fmt: skip
    return made


def head_argmax(x: Tensor, weight: Tensor, bias: Tensor | None, vocabulary: int) -> Tensor:
    """The token [1] with the highest logit of one row [1, 1, E]: `fused.head_argmax`. No logit is written."""
    x, width, outputs = x.contiguous(), x.shape[-1], min(vocabulary, len(weight))
    block = triton.next_power_of_2(width)
    rows = max(1, TILE // block)
    programs = triton.cdiv(outputs, rows)
    highest = empty(programs, dtype=torch.float32, device=x.device)
    place = empty(programs, dtype=torch.int32, device=x.device)
    token = empty(1, dtype=torch.long, device=x.device)
    _head_argmax[(programs,)](
        x, weight, weight if bias is None else bias, highest, place, token, _tickets(x.device), width, outputs,
        programs, BLOCK=block, ROWS=rows, AT_ONCE=PARTS_AT_ONCE, HAS_BIAS=bias is not None, **early(x),
    )  # fmt: skip
    return token


def head_drawn(
    x: Tensor, weight: Tensor, bias: Tensor | None, vocabulary: int, temperature: float, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """A token [1] drawn at `temperature` from the logits of one row, and its probabilities: `fused.head_drawn`.

    Two kernels: the logits with the highest and the mass of each block; then the probabilities, whose last program
    inverts the distribution function.
    """
    x, width, outputs = x.contiguous(), x.shape[-1], min(vocabulary, len(weight))
    block = triton.next_power_of_2(width)
    rows = max(1, TILE // block)
    programs, blocks = triton.cdiv(outputs, rows), triton.cdiv(outputs, OF_VOCABULARY)
    highest, mass = (empty(programs, dtype=torch.float32, device=x.device) for _ in range(2))
    masses = empty(blocks, dtype=torch.float64, device=x.device)
    row = empty(1, outputs, dtype=torch.float32, device=x.device)
    token = empty(1, dtype=torch.long, device=x.device)
    _head_logits[(programs,)](
        x, weight, weight if bias is None else bias, row, highest, mass, width, outputs, temperature, BLOCK=block,
        ROWS=rows, HAS_BIAS=bias is not None, **early(x),
    )  # fmt: skip
    _drawn_row[(blocks,)](
        row, highest, mass, masses, uniform, token, _tickets(x.device), outputs, programs, blocks,
        BLOCK=OF_VOCABULARY, AT_ONCE=PARTS_AT_ONCE, MASSES=triton.next_power_of_2(blocks), **early(x),
    )  # fmt: skip
    return token, row


@triton.jit
def _is_last(tickets, block, programs):
    """Whether this program is the last of `programs` to come here; what the others wrote before is seen after it."""
    tl.debug_barrier()  # all threads have written
    last = tl.atomic_add(tickets + block, 1, sem="acq_rel") == programs - 1
    tl.debug_barrier()
    return last


@triton.jit(do_not_specialize=["tokens"])  # the same code for any number of tokens: the same sums
def _linear_rows(
    x, weight, bias, residual, made, parts, tickets, tokens, width, outputs, w_row, w_column,
    SPLITS: tl.constexpr, PART: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_predecessor(EARLY)
    block, split = tl.program_id(0), tl.program_id(1)
    row, column = block * ROWS + tl.arange(0, ROWS), split * PART + tl.arange(0, PART)
    there, inside = row < outputs, column < width
    places = weight + row[:, None].to(tl.int64) * w_row + column[None, :] * w_column
    held = tl.load(places, mask=there[:, None] & inside[None, :], other=0.0).to(tl.float32)
    for token in range(tokens):
        read = tl.load(x + token * width + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(parts + (split * tokens + token) * outputs + row, tl.sum(held * read[None, :], 1), mask=there)
    if _is_last(tickets, block, SPLITS):
        tl.store(tickets + block, 0)
        for token in range(tokens):
            total = tl.zeros((ROWS,), tl.float32)
            for part in range(SPLITS):
                place = parts + (part * tokens + token) * outputs + row
                total += tl.load(place, mask=there, other=0.0, cache_modifier=".cg")
            if HAS_BIAS:
                total += tl.load(bias + row, mask=there, other=0.0).to(tl.float32)
            # Rounded where torch's operations round.
            if KIND >= 0:
                total = activated(total.to(made.dtype.element_ty).to(tl.float32), KIND)
            if HAS_RESIDUAL:
                before = tl.load(residual + token * outputs + row, mask=there, other=0.0).to(tl.float32)
                total = before + total.to(made.dtype.element_ty).to(tl.float32)
            tl.store(made + token * outputs + row, total.to(made.dtype.element_ty), mask=there)


@triton.jit
def _logits(x, weight, bias, width, outputs, BLOCK: tl.constexpr, ROWS: tl.constexpr, HAS_BIAS: tl.constexpr):
    """The outputs of this program, rounded to the weights' dtype; -inf past the last."""
    at = tl.arange(0, BLOCK)
    inside = at < width
    read = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < outputs
    places = weight + row[:, None].to(tl.int64) * width + at[None, :]
    held = tl.load(places, mask=there[:, None] & inside[None, :], other=0.0).to(tl.float32)
    total = tl.sum(held * read[None, :], 1)
    if HAS_BIAS:
        total += tl.load(bias + row, mask=there, other=0.0).to(tl.float32)
    return row, there, tl.where(there, total.to(weight.dtype.element_ty).to(tl.float32), -float("inf"))


@triton.jit
def _head_argmax(
    x, weight, bias, highest, place, token, tickets, width, outputs, programs, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, AT_ONCE: tl.constexpr, HAS_BIAS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_predecessor(EARLY)
    row, _, logits = _logits(x, weight, bias, width, outputs, BLOCK, ROWS, HAS_BIAS)
    logits = tl.where(logits == logits, logits, float("inf"))  # NaN: not finite, and the highest
    top = tl.max(logits, 0)
    tl.store(highest + tl.program_id(0), top)
    tl.store(place + tl.program_id(0), tl.min(tl.where(logits == top, row, outputs), 0))
    if _is_last(tickets, 0, programs):
        tl.store(tickets, 0)
        best = -float("inf")
        found = 0
        for first in range(0, programs, AT_ONCE):
            at = first + tl.arange(0, AT_ONCE)
            known = at < programs
            tops = tl.load(highest + at, mask=known, other=-float("inf"), cache_modifier=".cg")
            places = tl.load(place + at, mask=known, other=outputs, cache_modifier=".cg")
            top = tl.max(tops, 0)
            first_place = tl.min(tl.where(known & (tops == top), places, outputs), 0)
            better = top > best  # of equal logits the first, as torch chooses
            found = tl.where(better, first_place, found)
            best = tl.where(better, top, best)
        finite = (best > -float("inf")) & (best < float("inf"))
        tl.store(token, tl.where(finite, found, -1).to(tl.int64))


@triton.jit
def _head_logits(
    x, weight, bias, row_out, highest, mass, width, outputs, temperature, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    HAS_BIAS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_predecessor(EARLY)
    row, there, logits = _logits(x, weight, bias, width, outputs, BLOCK, ROWS, HAS_BIAS)
    logits = logits / temperature
    tl.store(row_out + row, logits, mask=there)
    top = tl.max(logits, 0)
    base = tl.where(top == -float("inf"), 0.0, top)  # no token of this block can be drawn
    tl.store(highest + tl.program_id(0), top)
    tl.store(mass + tl.program_id(0), tl.sum(tl.exp(logits - base), 0))


@triton.jit
def _drawn_row(
    row, highest, mass, masses, uniform, token, tickets, outputs, programs, blocks, BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr, MASSES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_predecessor(EARLY)
    best = -float("inf")
    for first in range(0, programs, AT_ONCE):
        at = first + tl.arange(0, AT_ONCE)
        best = tl.maximum(best, tl.max(tl.load(highest + at, mask=at < programs, other=-float("inf")), 0))
    total = 0.0
    for first in range(0, programs, AT_ONCE):
        at = first + tl.arange(0, AT_ONCE)
        known = at < programs
        tops = tl.load(highest + at, mask=known, other=-float("inf"))
        total += tl.sum(tl.load(mass + at, mask=known, other=0.0) * tl.exp(tops - best), 0)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = place < outputs
    logits = tl.load(row + place, mask=there, other=-float("inf"))
    probability = tl.where(there, tl.exp(logits - best) / total, 0.0)
    tl.store(row + place, probability, mask=there)
    tl.store(masses + tl.program_id(0), tl.sum(probability.to(tl.float64), 0))
    if _is_last(tickets, 0, blocks):
        tl.store(tickets, 0)
        at = tl.arange(0, MASSES)
        of_blocks = tl.load(masses + at, mask=at < blocks, other=0.0, cache_modifier=".cg")
        ends = tl.cumsum(of_blocks, 0)
        whole = tl.sum(tl.where(at == MASSES - 1, ends, 0.0), 0)
        wanted = tl.load(uniform).to(tl.float64) * whole
        # The block in which the distribution function passes it; by rounding none may: then the last with any mass.
        with_mass = tl.max(tl.where(of_blocks > 0, at, 0), 0)
        block = tl.minimum(tl.sum((ends <= wanted).to(tl.int32), 0), with_mass)
        before = tl.sum(tl.where(at < block, of_blocks, 0.0), 0)
        inner = tl.arange(0, BLOCK)
        own = block * BLOCK + inner
        kept = tl.load(row + own, mask=own < outputs, other=0.0, cache_modifier=".cg").to(tl.float64)
        passed = tl.sum((before + tl.cumsum(kept, 0) <= wanted).to(tl.int32), 0)
        found = block * BLOCK + tl.minimum(passed, tl.max(tl.where(kept > 0, inner, 0), 0))
        tl.store(token, tl.where(whole > 0, found, -1).to(tl.int64))
