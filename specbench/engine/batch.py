"""Several sequences of one model, of different lengths, in the rows of shared buffers, so that they read together.

A row's session is a session like any other; `Batch.extend_many` answers the reads of many of them in one run. Rows are
as long as their own sequences: a shorter read is padded at its end, where what is written does not count, and positions
and masks go row by row, so that a row needs no alignment with others. Rows are filled from the first; when a row in the
middle leaves and nothing takes its place, the last row moves there, so that a run goes over no more rows than decode.

Shapes: B rows of a run, L tokens of the longest read, V logits.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from specbench.engine.batch_steps import BatchableModel, RowsRead
from specbench.engine.beginnings import PROMPTS, Beginnings, read_prefix
from specbench.engine.buffers import MOST_STACKED, Buffers
from specbench.engine.eager.network_parts import LastRead
from specbench.engine.layout import Layout, OpenTree, chain, padded, ragged
from specbench.engine.reads import Read, ReadsThrough
from specbench.engine.session import Model, Prompt, Session, Tokens, innermost, require_readable
from specbench.errors import UserError

FIRST_CAPACITY = 64
SOURCE_STEP = 16  # cross-attention buffers grow in multiples of this
LOGITS = 16  # rows of logits that a row of a batch may hold at a time


class Batch(Model):
    """A model with room for `rows` sequences at a time.

    It is a `Model`: `start` takes a row, which is free again when its session is gone.
    """

    def __init__(self, model: BatchableModel, rows: int) -> None:
        self._begin(model, rows)
        self._steps = model.steps_of_rows(rows)
        self._sessions: list[weakref.ref[RowSession] | None] = [None] * rows
        self._source_lengths = [1] * rows  # also of a free row: a row that sees nothing would be NaN
        self._own = self._of_source = Buffers([], [])
        self._numbers_1C = self._positions_1C = torch.empty(1, 0, dtype=torch.long, device=self.device)

    def _begin(self, model: BatchableModel, rows: int) -> None:
        self.model, self.rows = model, rows
        self.vocabulary_size, self.eos_ids, self.longest = model.vocabulary_size, model.eos_ids, model.longest
        self.operations, self.now, self.device = model.operations, model.now, model.device
        self.mark, self.experts = model.mark, model.experts

    def get_ready(self, prompt: Prompt, tokens: int) -> None:
        """Capture what verdicts are computed by. Steps of a batch are no graphs."""
        self.model.capture_repeated()

    def repeat(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        return self.model.repeat(function, *inputs)

    @staticmethod
    def of(model: Model, rows: int) -> "Batch":
        """`model` with room for `rows` sequences.

        Raises UserError if its network cannot read rows of several lengths.
        """
        own = cast(BatchableModel, model)
        if not own.reads_at_once and own.window is not None:
            raise UserError(f"batch={rows}: a draft with a window is batched only by engine=native; use batch=1")
        return (BatchOfSessions if own.reads_at_once else Batch)(own, rows)

    @torch.inference_mode()
    def start(self, prompt: Prompt) -> Session:
        """A session in the first free row that has read all of the prompt but the prefix's last token."""
        row = next((index for index in range(self.rows) if self._session(index) is None), None)
        if row is None:
            raise ValueError(f"rows: none of {self.rows} is free")
        session = RowSession(self, row)
        self._sessions[row] = weakref.ref(session)
        beginnings: Beginnings | None = None if self.model.states_of_prompt else self.model.beginnings
        if prompt.source:
            self._read_source(row, prompt.source, beginnings)
        read_prefix(session, prompt, beginnings, len(prompt.prefix) - 1 - bool(self.model.state_width))
        return session

    def _read_source(self, row: int, source: tuple[int, ...], beginnings: Beginnings | None) -> None:
        require_readable(source, self.model.readable)
        states = None if beginnings is None else beginnings.of_source(source)
        if states is None:
            states = self._steps.encode(torch.tensor([source], device=self.device))
            PROMPTS.read += len(source)
            if beginnings is not None and beginnings.repeats(source):
                beginnings.keep_source(source, states)
        else:
            PROMPTS.copied += len(source)
        self._reserve_source(len(source))
        self._source_lengths[row] = len(source)
        for buffer, state in zip(self._of_source.layers, states, strict=True):
            buffer[row : row + 1, :, : len(source)] = state

    def read_first(self, session: "RowSession", tokens: Sequence[int]) -> None:
        """Read the next tokens of a prompt, without their logits."""
        self._read([Read(session, tokens)], last_row=not self.model.states_of_prompt)

    def row(self, session: "RowSession", slots: int) -> Buffers:
        """The session's row of the buffers, which have room for so many slots."""
        self._reserve(slots)
        return self._own.rows(session.row, session.row + 1)

    @torch.inference_mode()
    def extend_many(self, reads: Sequence[Read]) -> list[Tensor]:
        """The results of `Session.extend` for each of `reads`, one for each session of this batch, from one run."""
        self._close_gaps()
        return self._read(reads)

    def source_states(self, row: int, layer: int) -> tuple[Tensor, Tensor] | None:
        """Keys and values of a decoder layer's cross-attention over the row's source; None for a decoder-only model."""
        if not self._of_source.layers:
            return None
        length = self._source_lengths[row]
        keys, values = (states[row : row + 1, :, :length] for states in self._of_source.pair(layer))
        return keys, values

    @torch.inference_mode()
    def keep(self, session: "RowSession", slots: list[int], start: int) -> None:
        """Copy the content of `slots` of the session's row to the slots from `start` on."""
        self._own.rows(session.row, session.row + 1).move_slots(slots, start)

    def _read(self, reads: Sequence[Read], last_row: bool = False) -> list[Tensor]:
        sessions = [self._reading(read) for read in reads]
        counts = [len(read.tokens) for read in reads]
        count = max(counts)
        first = sessions[0].row if len(reads) == 1 else 0
        stop = max(session.row for session in sessions) + 1
        standing: list[RowSession | None] = [self._session(row) for row in range(first, stop)]
        self._reserve(max(0 if one is None else one.end for one in standing) + count)
        ids = [[0] * count for _ in standing]
        for session, read in zip(sessions, reads, strict=True):
            if not isinstance(read.tokens, Tensor):
                require_readable(read.tokens, self.model.readable)
            ids[session.row - first][: len(read.tokens)] = read.tokens
        logits_BLV = self._steps.run(RowsRead(
            torch.tensor(ids, device=self.device),
            self._layout(standing, dict(zip(sessions, counts, strict=True)), count),
            self._source_lengths[first:stop], self._own.rows(first, stop).layers,
            self._of_source.rows(first, stop).layers, last_row,
        ))  # fmt: skip
        found = []
        for session, read in zip(sessions, reads, strict=True):
            logits_LV = logits_BLV[session.row - first]
            if not last_row:
                logits_LV = logits_LV[: len(read.tokens)]
            session.has_read(read, logits_LV)
            found.append(logits_LV)
        return found

    def _reading(self, read: Read) -> "RowSession":
        """The session that answers `read`, after adding the tokens to its tree of candidates."""
        session = read.session
        assert isinstance(session, RowSession) and session.batch is self
        if read.parents is not None:
            self.model.require_trees()
        session.tree.grow(read.tokens, read.parents)
        return session

    def _layout(self, standing: Sequence["RowSession | None"], counts: dict["RowSession", int], count: int) -> Layout:
        """The layout of `count` tokens in each of these rows; rows that read fewer, or nothing, are filled up."""
        if all(one is None or one.tree.is_chain for one in standing):
            begins = [0 if one is None else one.end - (counts.get(one, 0) if one.tree else 0) for one in standing]
            return ragged(torch.tensor(begins, device=self.device), count, self._numbers_1C, self._positions_1C)
        layouts = []
        for one in standing:
            read = 0 if one is None else counts.get(one, 0)
            if one is None or not read:
                layouts.append(chain(0 if one is None else one.end, count, self._numbers_1C))
            else:
                # A tree has grown already; a sequence grows once it is read.
                end = one.end if one.tree else one.end + read
                layouts.append(padded(one.tree.layout(one.length, read, self._numbers_1C), end, count))
        found, most = Layout.of_rows(layouts), None if self.longest is None else self.longest - 1
        return replace(found, positions_BC=found.positions_BC.clamp(max=most)) if most else found

    def _session(self, row: int) -> "RowSession | None":
        found = self._sessions[row]
        return None if found is None else found()

    def _close_gaps(self) -> None:
        """Move the last rows into the places of rows that have left."""
        live = [one for row in range(self.rows) if (one := self._session(row)) is not None]
        free = [row for row in range(len(live)) if self._session(row) is None]
        for row, session in zip(free, reversed(live), strict=False):
            for buffers in (self._own, self._of_source):
                buffers.copy_row(session.row, row)
            self._sessions[row], self._sessions[session.row] = self._sessions[session.row], None
            self._source_lengths[row] = self._source_lengths[session.row]
            session.row = row

    def _reserve(self, needed: int) -> None:
        """Make room for `needed` tokens in each row, rounded up to a power of two; cached tokens are moved."""
        if needed <= self._own.slots:
            return
        capacity = _power_of_two(needed)
        self._own = self._larger(self._own, "self", capacity)
        self._numbers_1C = torch.arange(capacity, device=self.device).unsqueeze(0)
        # Padding may stand past the last position that the network knows.
        self._positions_1C = self._numbers_1C if self.longest is None else self._numbers_1C.clamp(max=self.longest - 1)

    def _reserve_source(self, needed: int) -> None:
        if needed > self._of_source.slots:
            self._of_source = self._larger(self._of_source, "cross", -(-needed // SOURCE_STEP) * SOURCE_STEP)

    def _larger(self, old: Buffers, kind: str, slots: int) -> Buffers:
        if old.layers and slots > MOST_STACKED:
            return old.grown(slots, old.slots)
        new = Buffers.zeros(self._steps.shapes[kind], slots, self._steps.cache_dtype, self.device, self.rows)
        if old.layers:
            new.copy_slots(old, old.slots)
        return new


class BatchOfSessions(Batch):
    """Sessions of the model itself, each with buffers of its own, whose reads are parts of one run.

    So a row is computed as by itself: nothing is padded, and rows are neither aligned nor moved.
    """

    def __init__(self, model: BatchableModel, rows: int) -> None:
        self._begin(model, rows)
        model.require_batches(rows)
        self._started = weakref.WeakSet[Session]()

    def start(self, prompt: Prompt) -> Session:
        if len(self._started) >= self.rows:
            raise ValueError(f"rows: none of {self.rows} is free")
        session = self.model.start(prompt)
        session.batch = self
        self._started.add(session)
        return session

    def extend_many(self, reads: Sequence[Read]) -> list[Tensor]:
        return self.model.read_at_once(reads)


def bytes_of_row(model: Model, tokens: int, source: int) -> float:
    """Maximum bytes of a row with so many tokens and a source of this length.

    They are the keys and values, the smaller buffers that these move from when they grow, and the logits of a run in
    fp32.
    """
    return 1.5 * bytes_of_cache(model, tokens, source, in_batch=True) + 4.0 * model.vocabulary_size * LOGITS


def bytes_of_cache(model: Model, tokens: int, source: int, in_batch: bool = False) -> int:
    """The bytes of keys and values of a sequence with so many tokens and a source of this length.

    They are rounded up to the sizes that this engine allocates, which are larger for a captured step and for a row
    `in_batch`.
    """
    own: Any = innermost(model)
    if (window := own.window) is not None:
        shapes, size = own.steps_of_rows(1).shapes["self"], own.steps_of_rows(1).cache_dtype.itemsize
        return int(window.slots * size * sum(heads * channels for heads, channels in shapes))
    if own.recurrence is not None:
        return int(own.bytes_of_session(tokens))
    program = None if in_batch else own.program
    cached = own.steps_of_rows(1) if program is None else program
    slots = {"self": tokens, "cross": source}
    if in_batch:
        slots = {"self": _power_of_two(tokens), "cross": -(-source // SOURCE_STEP) * SOURCE_STEP}
    elif program is not None:
        slots = {"self": own.capacity(tokens), "cross": own.source_slots(source)}
    return sum(
        heads * channels * slots[kind] * cached.cache_dtype.itemsize
        for kind, shapes in cached.shapes.items()
        for heads, channels in shapes
    )


def _power_of_two(needed: int) -> int:
    return max(FIRST_CAPACITY, 1 << (needed - 1).bit_length())


class RowSession(Session):
    """One sequence in a row of a batch. Alone it reads in a run of its own."""

    length: int = 0

    def __init__(self, batch: Batch, row: int) -> None:
        self.batch: Batch = batch
        self.row = row
        self.tree = OpenTree()
        self._last = LastRead()

    @property
    def end(self) -> int:
        """The number of slots in use: tokens of the sequence, then nodes of a tree."""
        return self.length + len(self.tree)

    def read_first(self, tokens: Sequence[int]) -> None:
        self.batch.read_first(self, tokens)

    def beginning(self, count: int) -> Buffers:
        return self.lent(count).beginning(count)

    def lent(self, count: int) -> Buffers:
        return self.batch.row(self, count)

    def begin_with(self, kept: Buffers, count: int) -> None:
        self.batch.row(self, count).copy_slots(kept, count)
        self.length = count

    def extend(self, tokens: Tokens, parents: Sequence[int] | None = None) -> Tensor:
        return self.batch.extend_many([Read(self, tokens, parents)])[0]

    def has_read(self, read: Read, logits_LV: Tensor) -> None:
        """Count what a run of the batch has read for this session."""
        width = self.batch.model.state_width
        if read.parents is None:
            self.length += len(read.tokens)
            self._last.put(logits_LV, width, self.length)
        else:
            self._last.put_nodes(logits_LV, width, len(self.tree) - len(read.tokens))

    def select(self, path: Sequence[int]) -> None:
        slots = [self.length + node for node in self.tree.select(path)]
        self.batch.keep(self, slots, self.length)
        self.length += len(path)
        self._last.select(list(path), self.length)

    def rollback(self, length: int) -> None:
        self.length = min(self.length, length)
        if self.tree:
            self.tree.close()
            self._last.select([], self.length)

    def states(self, start: int, stop: int) -> Tensor | None:
        return self._last.states(start, stop, self.batch.model.tap_width)

    def tapped(self, start: int, stop: int) -> Tensor | None:
        return self._last.tapped(start, stop, self.batch.model.tap_width)

    def source_states(self, layer: int = -1) -> tuple[Tensor, Tensor] | None:
        return self.batch.source_states(self.row, layer)


def read_together(reads: Sequence[Read]) -> list[Tensor]:
    """The results of `Session.extend` for each of `reads`, which are of different sessions: one run for each batch."""
    answers: list[Tensor | None] = [None] * len(reads)
    batches: dict[Batch, list[int]] = {}
    due, finish = list(reads), dict[int, Callable[[Tensor], Tensor]]()
    for index, read in enumerate(reads):
        if isinstance(read.session, ReadsThrough) and batch_of(read.session) is not None:
            due[index], finish[index] = read.session.through(read.tokens, read.parents)
        if (batch := batch_of(due[index].session)) is not None:
            batches.setdefault(batch, []).append(index)
        else:
            answers[index] = due[index].session.extend(read.tokens, read.parents)
    for batch, indices in batches.items():
        for index, logits_LV in zip(indices, batch.extend_many([due[index] for index in indices]), strict=True):
            answers[index] = finish[index](logits_LV) if index in finish else logits_LV
    return [logits_LV for logits_LV in answers if logits_LV is not None]


def batch_of(session: Session) -> Batch | None:
    """The batch that `session` is a row of, or reads through."""
    if isinstance(session, ReadsThrough):
        session = session.session
    batch: Batch | None = session.batch
    return batch
