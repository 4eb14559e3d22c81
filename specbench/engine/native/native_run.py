"""A program for `kernels.c` and calls of it: what they read, where they write, and the room that they need.

Shapes: B texts, L new tokens of each, W columns.
"""

import copy
import ctypes
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

from specbench.engine.clock import RUNS
from specbench.engine.native.assemble import Assembly
from specbench.engine.native.fits import DoesNotFit, require_fits
from specbench.engine.native.fuse import fused
from specbench.engine.native.instructions import OF_ROWS, Instruction, encoded
from specbench.kernels import library
from specbench.kernels.structures import Op, Part, Step

LINE = 16  # floats of a line of the cache
INPUTS = 32  # to a multiple of which a linear map's inputs may be filled up


def lines(floats: int) -> int:
    """So many floats, rounded up to whole lines of the cache."""
    return -(-floats // LINE) * LINE


class NativeRun:
    """A program of `kernels.c` and what its calls need: it reads `run.outside`, and writes the rows of `given`."""

    def __init__(self, run: Assembly, given: list[Node]) -> None:
        self._forms = [run.stored(node) for node in given]
        self._program = fused(run.program)  # which holds the weights
        require_fits(self._program, len(run.outside) + len(given), len(run.sizes))
        self.raw, self.floats = encoded(self._program, run.dtype == torch.bfloat16)
        self.dtype, self.widths = run.dtype, [form.width for form in self._forms]
        self._rows_of, self._texts_of, self.prepared, self._sizes_of = (
            run.rows_of,
            run.texts_of,
            run.prepared,
            run.sizes,
        )
        # (heads, channels) of each result that consists of heads.
        self.heads = [(f.heads, f.width // f.heads) for f in self._forms if f.heads and f.heads_first]
        self._inner = max((one.inner for one in self._program if one.op == Op.LINEAR), default=0)
        self._attends = [one for one in self._program if one.op == Op.ATTEND]
        self._room = torch.empty(0)
        self.__name__ = "native_run"

    def __call__(self, *outside: Tensor) -> tuple[Tensor, ...]:
        call = BoundCall(self, outside)
        results = self.results(call.texts, call.rows)
        call.run(results)
        return tuple(form.formed(result) for form, result in zip(self._forms, results, strict=True))

    def writing(self, outside: int) -> "NativeRun":
        """A copy of this program that writes its results, which are `heads`, into caches as soon as they are known.

        After its `outside` tensors it reads these caches and the slots of the rows in them.
        """
        made, after = copy.copy(self), defaultdict[int | None, list[Instruction]](list)
        made._sizes_of = list(self._sizes_of)
        stored = [one for one in self._program if one.op == Op.STORE]
        for index, (one, (heads, channels)) in enumerate(zip(stored, self.heads, strict=True)):
            assert one.x is not None
            after[one.x.slot].append(Instruction(
                Op.WRITE, one.width, x=one.x, inner=channels, heads=heads, slots=len(made._sizes_of),
                outside=[outside + index, outside + len(stored)],
            ))  # fmt: skip
            made._sizes_of.append((outside + index, 2))
        made._program = [each for one in self._program if one.op != Op.STORE for each in (one, *after.get(one.out, ()))]
        require_fits(made._program, outside + len(stored) + 1, len(made._sizes_of))
        made.raw, made.floats = encoded(made._program, self.dtype == torch.bfloat16)
        made.widths, made._room = [], torch.empty(0)
        return made

    def require_buffers(self, outside: Sequence[Tensor]) -> None:
        """Raise DoesNotFit if a cache among the tensors outside has other heads or channels than the program's."""
        for one in self._program:
            if one.op in (Op.WRITE, Op.ATTEND) and one.slots != OF_ROWS:
                heads = one.heads if one.op == Op.WRITE else one.key_heads
                dtype = torch.bfloat16 if one.short_cache else torch.float32
                for number in one.outside[: 1 if one.op == Op.WRITE else 2]:
                    buffer = outside[number]
                    fits = (
                        buffer.shape[1::2] == (heads, one.inner) and buffer.shape[2] == outside[one.outside[0]].shape[2]
                    )
                    if not fits or not buffer.is_contiguous() or buffer.dtype != dtype:
                        raise DoesNotFit(
                            f"a cache {list(buffer.shape)} does not fit {heads} heads of {one.inner} channels"
                        )

    def results(self, texts: int, rows: int) -> list[Tensor]:
        """Room for what a call writes of `rows` rows in all."""
        return [torch.empty(texts, rows // texts, width, dtype=self.dtype) for width in self.widths]

    def prepare(self, number: int, tensor: Tensor) -> Tensor:
        """The tensor outside of this number, in the form that the program reads."""
        prepared = self.prepared.get(number)
        return tensor if prepared is None else prepared(tensor)

    def rows_of(self, outside: Sequence[Tensor]) -> tuple[int, int]:
        """B and B * L; B is 1 if no tensor has an axis for texts."""
        number, width = self._rows_of
        return 1 if self._texts_of is None else len(outside[self._texts_of]), outside[number].numel() // width

    def sizes_of(self, outside: Sequence[Tensor]) -> list[int]:
        """Numbers of slots, texts, heads and rows, in the order of the program."""
        return [outside[number].shape[axis] for number, axis in self._sizes_of]

    def scratch(self, rows: int, sizes: Sequence[int]) -> int:
        """Floats that each thread needs for itself: rows of a linear map; of up to 8 rows, scores and slots."""
        blocks = {one.inner for one in self._attends if one.in_blocks}
        slots = {rows if one.slots == OF_ROWS else sizes[one.slots] for one in self._attends if not one.in_blocks}
        rooms = [library().attend_room(inner) for inner in blocks] + [17 * (count + 16) for count in slots]
        return max(self.scratch_of_maps(rows), *map(lines, rooms), LINE)

    @property
    def attends_in_blocks(self) -> list[bool]:
        """Whether it goes through a cache once for many tokens, of each of its attentions."""
        return [one.in_blocks for one in self._attends]

    def shared(self, rows: int, sizes: Sequence[int]) -> int:
        """Floats that the threads share: what each block of a cache comes to, if they divide a text's blocks."""
        blocks = {(one.heads, one.key_heads, one.inner, one.slots) for one in self._attends if one.in_blocks}
        return max((lines(library().shared_room(*kind, rows, sizes[slots])) for *kind, slots in blocks), default=0)

    def scratch_of_maps(self, rows: int) -> int:
        """Floats that each thread needs for rows as a linear map reads them."""
        return lines((self._inner + INPUTS) * rows)

    def room(self, arena: int, scratch: int) -> tuple[int, int]:
        """Addresses of room for so many floats each."""
        arena = lines(arena)
        if self._room.numel() < arena + scratch:
            self._room = torch.empty(arena + scratch)
        return self._room.data_ptr(), self._room.data_ptr() + 4 * arena


class Placed(NamedTuple):
    """Tensors that depend on the place in the text; `address` locates the array of their addresses."""

    address: int
    addresses: Any
    held: list[Tensor]


class Places:
    """The `Placed` of a step over so many tokens by the length of the text before them; C also looks them up here."""

    def __init__(self, slots: int) -> None:
        self.addresses = (ctypes.c_void_p * (slots + 1))()
        self._held: dict[int, Placed] = {}

    def get(self, length: int) -> Placed | None:
        return self._held.get(length)

    def put(self, length: int, placed: Placed) -> None:
        self.addresses[length], self._held[length] = placed.address, placed


class BoundCall:
    """A program with the addresses of all that it reads.

    A session makes one for each number of rows, and later sets only the addresses that have changed since: gathering
    them anew would take a quarter of a small model's step.
    """

    tokens: Any = None  # the session's own array of new tokens
    placed: "Placed | None" = None

    def __init__(self, run: NativeRun, outside: Sequence[Tensor], moved: Sequence[int] = (), ids: int = -1) -> None:
        """`moved`: numbers of the tensors that `place` sets; `ids`: the number of the new tokens' tensor."""
        self.program, self.ids, self._moved = run, ids, (ctypes.c_int64 * len(moved))(*moved)
        self.texts, self.rows = run.rows_of(outside)
        self.held = [run.prepare(number, one) for number, one in enumerate(outside)]
        sizes = run.sizes_of(self.held)
        self.scratch, self.shared = run.scratch(self.rows, sizes), run.shared(self.rows, sizes)
        self._sizes = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
        self.addresses = (ctypes.c_void_p * (len(outside) + len(run.widths)))(*[one.data_ptr() for one in self.held])
        self.part, self.step = self._made()

    def _made(self) -> tuple[Part, Step]:
        read, sizes = ctypes.addressof(self.addresses), ctypes.addressof(self._sizes)
        results = len(self.addresses) - len(self.program.widths)
        part = Part(read, sizes, self.texts, self.rows, ctypes.addressof(self._moved), None, 0, self.ids, results)
        return part, Step(
            ctypes.addressof(self.program.raw), len(self.program.raw), ctypes.addressof(part), 1, self.rows
        )

    def place(self, placed: "Placed") -> None:
        """Read what depends on the place in the text from `placed`, from the next run on."""
        self.placed, part = placed, self.part
        part.placed, part.moved_count = placed.address, len(placed.held)

    def again(self) -> "BoundCall":
        """Another call of the same, whose addresses can be set apart from this one's."""
        made = copy.copy(self)
        made.addresses = type(self.addresses).from_buffer_copy(self.addresses)
        made.part, made.step = made._made()
        return made

    def run(self, results: Sequence[Tensor]) -> None:
        """Run it, and write to `results`."""
        run, first = self.program, len(self.addresses) - len(results)
        for index, result in enumerate(results):
            self.addresses[first + index] = result.data_ptr()
        threads = torch.get_num_threads()
        start, scratch = run.room(run.floats * self.rows, self.scratch * threads + self.shared)
        RUNS.run(library().run, ctypes.byref(self.step), start, scratch, self.scratch, threads)


def run_at_once(calls: Sequence[BoundCall]) -> list[Tensor]:
    """What each of these calls of one program returns, [L, W], from one run over the rows of all.

    Weights are read once for all of them, or, from 64 rows a thread on, once for some rows at a time. A row is summed
    as in a run of its own, and so the same to the bit.
    """
    program, threads = calls[0].program, torch.get_num_threads()
    counts = [call.rows for call in calls]
    rows, (width,) = sum(counts), program.widths
    result_RW = torch.empty(rows, width, dtype=program.dtype)
    at, bytes_of_row = result_RW.data_ptr(), width * result_RW.itemsize
    for call in calls:
        call.addresses[len(call.addresses) - 1] = at
        at += call.rows * bytes_of_row
    parts = (Part * len(calls))(*[call.part for call in calls])
    step = Step(ctypes.addressof(program.raw), len(program.raw), ctypes.addressof(parts), len(calls), rows)
    scratch = max(program.scratch_of_maps(rows), *[call.scratch for call in calls])
    shared = max(call.shared for call in calls)
    start, room = program.room(program.floats * rows, scratch * threads + shared)
    RUNS.run(library().run, ctypes.byref(step), start, room, scratch, threads)
    return list(result_RW.split(counts))
