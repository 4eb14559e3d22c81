"""Runs of a simplified graph's operations, each replaced by one call of a program for `kernels.c`.

Shapes: B texts, L new tokens of each, W columns, H heads, D channels of a head.
"""

import contextlib
import copy
import ctypes
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from specbench.engine.capture import kernels
from specbench.engine.capture.experts import CLAMPED, ExpertLayer
from specbench.engine.capture.invariant import INVARIANT
from specbench.engine.capture.lower import FAST, Kernels, PackedWeights, direct, lower, named, with_packed_weights
from specbench.engine.capture.nodes import calls, finished, replace_by_call, value
from specbench.engine.capture.torch_private import LazyGraphModule, computes_bf16
from specbench.engine.clock import RUNS
from specbench.engine.experts import ExpertReads
from specbench.engine.native.assemble import Assembly, Sizes, laid_out
from specbench.engine.native.instructions import OF_ROWS, DoesNotFit, Instruction, Op, encoded, fused, require_fits
from specbench.kernels import RawSampling, library
from specbench.sampling import Choice

# A layer's experts in the kernels of `kernels.c`, between the programs of a step.
#
# Shapes: T tokens, K experts chosen for each, E channels of the model, M inner channels of an expert.


ACTIVATIONS = {"SiLUActivation": Op.SILU, "SiLU": Op.SILU, "GELUActivation": Op.GELU, "GELUTanh": Op.GELU_TANH,
               "ReLU": Op.RELU}  # fmt: skip


class RawExperts(ctypes.Structure):
    """`Experts` of kernels.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("up", "down", "up_bias", "down_bias")),
        *((name, ctypes.c_int64) for name in ("experts", "width", "inner", "short_floats", "activation", "clamped")),
        *((name, ctypes.c_double) for name in ("alpha", "limit")),
    ]  # fmt: skip


class NativeExperts:
    """A layer's experts, and room for what they compute; it notes which of them a run reads."""

    def __init__(self, layer: ExpertLayer, packed: PackedWeights) -> None:
        self._reads: ExpertReads = packed.reads
        self._held = [[packed.of(one, laid_out) for one in weight] for weight in (layer.up, layer.down)]
        self._biases = layer.up_bias, layer.down_bias
        self._addresses = [(ctypes.c_void_p * len(held))(*[one.data_ptr() for one in held]) for held in self._held]
        number, self._width, self._inner = layer.down.shape
        gate = layer.gate
        self._raw = RawExperts(
            *(ctypes.addressof(one) for one in self._addresses),
            *(None if bias is None else bias.data_ptr() for bias in self._biases),
            number, self._width, self._inner, layer.down.dtype == torch.bfloat16,
            ACTIVATIONS.get(gate.name, Op.SILU), gate.name == CLAMPED, gate.alpha, gate.limit,
        )  # fmt: skip
        self._room = torch.empty(0)
        self.__name__ = "experts"

    def __call__(self, states_TE: Tensor, chosen_TK: Tensor, weights_TK: Tensor) -> Tensor:
        self._reads.chosen.append(chosen_TK)
        states_TE, chosen_TK, weights_TK = states_TE.contiguous(), chosen_TK.contiguous(), weights_TK.contiguous()
        (tokens, per_token), threads = chosen_TK.shape, torch.get_num_threads()
        pairs, widest = tokens * per_token, max(self._width, self._inner)
        floats = pairs * (2 * self._width + 3 * self._inner + 2) + 2 * (self._raw.experts + 2)
        floats += -floats % LINE
        scratch = (tokens + 1) * (widest + 2 * LINE)
        if self._room.numel() < floats + threads * scratch:
            self._room = torch.empty(floats + threads * scratch)
        out_TE = torch.empty_like(states_TE)
        room = self._room.data_ptr()
        library().mix_experts(
            ctypes.byref(self._raw), states_TE.data_ptr(), chosen_TK.data_ptr(), weights_TK.data_ptr(),
            weights_TK.dtype == torch.bfloat16, tokens, per_token, out_TE.data_ptr(), room, room + 4 * floats, scratch,
            threads,
        )  # fmt: skip
        return out_TE


class ShortCaches(NotImplementedError):
    """Raised where torch would read caches in bf16 step by step: it is faster on fp32."""


def with_native_experts(module: GraphModule, packed: PackedWeights) -> GraphModule:
    """`module` with its layers of experts in our kernels where these read their numbers, in place."""
    for node in calls(module, torch.ops.specbench.experts.default):
        layer = ExpertLayer.of(module, node)
        dtypes = value(node.args[0]).dtype, value(node.args[2]).dtype
        known = layer.gate.name == CLAMPED or layer.gate.name in ACTIVATIONS
        if known and layer.up.dtype == dtypes[0] and set(dtypes) <= {torch.float32, torch.bfloat16}:
            replace_by_call(node, NativeExperts(layer, packed), node.args[:3])
    return module


def lower_native(
    module: GraphModule, packed: PackedWeights, one_token: bool, others: Kernels = FAST
) -> Callable[..., Any]:
    """`module` with as much as possible of it in native programs, in place, ready to run. Raises NotCompiled.

    What is left runs in the kernels `others`.
    """
    library()
    finished(named(module, one_token))
    ids = next(node for node in module.graph.nodes if node.op == "placeholder")
    if value(ids).device.type == "cpu":
        _replace_runs(module, packed, one_token, Sizes.of(value(ids)))
        if not any(node.target is _item for node in module.graph.nodes):
            raise NotImplementedError("a step without a linear map that the native kernels know")
        if (whole := _whole(module) or _whole_reading(module)) is not None:
            return whole
    with_native_experts(module, packed)
    for node in calls(module, kernels.attend, kernels.attend_alone):
        if value(node.args[1]).dtype == torch.bfloat16 and value(node.args[1]).device.type == "cpu":
            raise ShortCaches("attention that the native kernels lack, over caches in bfloat16")
        node.target = others.attend
    return direct(with_packed_weights(module, packed, one_token, others))


def lower_native_invariant(module: GraphModule, packed: PackedWeights, one_token: bool) -> Callable[..., Any]:
    """`lower_native`; what is left has rows that do not depend on their number, as our kernels' sums run in order."""
    return lower_native(module, packed, one_token, INVARIANT)


class LoweredPrompt:
    """The reading of a prompt or a source in native programs, or in torch's operations where these are faster.

    Torch's attention goes through the keys once for many tokens, so that the longer a prompt, the more of its time it
    saves, and the wider a model, the less of its time that is. In bf16 with matrix registers (2 cores with AMX) both
    take as long at 150 tokens of 128 channels and at 310 of 256, and with 576 channels ours take 0.5 to 0.7 times as
    long up to 768 tokens: there ours read up to as many tokens as the model is wide. Elsewhere they read `FEWEST`: on
    2 cores with AVX-512 ours take 0.2 to 0.9 times as long up to 64 tokens, as long at 130, and 1.05 to 1.4 times at
    250 to 500. In bf16 on a processor without instructions for it, ours are ten times as fast at any length. Where ours
    go through a cache once for many tokens, too, and there are no matrix registers, they read prompts of any length.
    """

    FEWEST, MOST = 128, 512  # tokens

    def __init__(self, module: GraphModule, packed: PackedWeights, one_token: bool) -> None:
        self._module = LazyGraphModule(module, copy.deepcopy(module.graph))
        self._rest = packed, one_token
        dtypes = {found.dtype for node in module.graph.nodes if isinstance(found := value(node), Tensor)}
        wide = [self.FEWEST]
        if torch.bfloat16 in dtypes and library().uses_tiles() and not packed.level_bits:
            wide += [value(node).shape[-1] for node in calls(module, torch.ops.aten.embedding.default)][:1]
        self._most = min(self.MOST, max(wide))
        self._native: Callable[..., Any] | None = None
        with contextlib.suppress(NotImplementedError):
            self._native = lower_native(module, packed, one_token)
        slow = torch.bfloat16 in dtypes and not computes_bf16()
        fast = not (library().uses_tiles() or packed.level_bits) and _reads_in_blocks(module)
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
        """Write a source's keys and values into the first slots of `buffers`; False where torch is to read it."""
        reading = self._for(inputs[0])
        if not isinstance(reading, WholeReading):
            return False
        reading.into(buffers, *inputs)
        return True


def _reads_in_blocks(module: GraphModule) -> bool:
    """Whether all attention of a lowered `module` goes through a cache once for many tokens."""
    runs = [node.target for node in module.graph.nodes if isinstance(node.target, NativeRun)]
    found = [one for run in runs for one in run.attends_in_blocks]
    return bool(found) and all(found) and not calls(module, kernels.attend, kernels.attend_alone)


def _replace_runs(module: GraphModule, packed: PackedWeights, one_token: bool, rows: Sizes) -> None:
    """Runs over all tokens, and over other numbers of rows."""

    def begun(node: Node) -> Assembly:
        """A run that begins with `node`, if it can; an empty one otherwise."""
        assembly, found = Assembly(module, packed, one_token, rows), value(node)
        if not assembly.add(node) and isinstance(found, Tensor) and found.dim() > 1:
            # Rows of its own: of the last token, of several heads.
            own = Sizes.of(found if found.dim() > 2 else found.unsqueeze(0))
            (alone := Assembly(module, packed, own.tokens == 1, own)).add(node)
            return alone if alone.nodes else assembly
        return assembly

    assembly, runs = Assembly(module, packed, one_token, rows), []
    for node in list(module.graph.nodes):
        if node.op in ("placeholder", "get_attr") or _is_size(node):
            continue
        if node.op != "output" and assembly.add(node):
            continue
        runs.append(assembly)
        if node.op != "output":
            assembly = begun(node)
    replaced: dict[Node, Node] = {}
    for run in runs:
        if any(instruction.op == Op.LINEAR for instruction in run.program):
            _replace(module, run, replaced)


def _is_size(node: Node) -> bool:
    return node.op == "call_function" and isinstance(value(node), int | torch.SymInt)


def _replace(module: GraphModule, run: Assembly, replaced: dict[Node, Node]) -> None:
    """`run`'s nodes replaced by one call that returns what others use of them; `replaced` says what became what."""
    own = set(run.nodes)
    given = [node for node in run.nodes if any(user not in own for user in node.users)]
    call = NativeRun(run, given)
    with module.graph.inserting_after(run.nodes[-1]):
        node = module.graph.call_function(call, tuple(replaced.get(one, one) for one in run.outside))
    at = node
    for index, before in enumerate(given):
        with module.graph.inserting_after(at):
            at = module.graph.call_function(_item, (node, index))
        at.meta = dict(before.meta)
        replaced[before] = at
        before.replace_all_uses_with(at, lambda user: user not in own)
    for before in reversed(run.nodes):
        module.graph.erase_node(before)


def _item(results: tuple[Tensor, ...], index: int) -> Tensor:
    return results[index]


class Part(ctypes.Structure):
    """`Part` of kernels.c."""

    _fields_ = [
        ("outside", ctypes.c_void_p), ("sizes", ctypes.c_void_p), ("texts", ctypes.c_int64), ("rows", ctypes.c_int64),
        ("moved", ctypes.c_void_p), ("placed", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("moved_count", "ids", "results")),
    ]  # fmt: skip


class Step(ctypes.Structure):
    """`Step` of kernels.c."""

    _fields_ = [
        ("program", ctypes.c_void_p), ("count", ctypes.c_int64), ("parts", ctypes.c_void_p),
        ("part_count", ctypes.c_int64), ("rows", ctypes.c_int64),
    ]  # fmt: skip


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
        # Of each result (heads, channels), where it is heads'.
        self.heads = [(f.heads, f.width // f.heads) for f in self._forms if f.heads and f.heads_first]
        self._inner = max((one.inner for one in self._program if one.op == Op.LINEAR), default=0)
        self._attends = [one for one in self._program if one.op == Op.ATTEND]
        self._room = torch.empty(0)
        self.__name__ = "native_run"

    def __call__(self, *outside: Tensor) -> tuple[Tensor, ...]:
        call = Call(self, outside)
        results = self.results(call.texts, call.rows)
        call.run(results)
        return tuple(form.formed(result) for form, result in zip(self._forms, results, strict=True))

    def writing(self, outside: int) -> "NativeRun":
        """The same program with its results, which are `heads`, written into caches as soon as they are known.

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
        """Raise DoesNotFit where a cache among the tensors outside has other heads or channels than the program's."""
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
        """What the program reads of the tensor outside that has this number."""
        prepared = self.prepared.get(number)
        return tensor if prepared is None else prepared(tensor)

    def rows_of(self, outside: Sequence[Tensor]) -> tuple[int, int]:
        """B and B * L; B is 1 where no tensor has an axis for texts."""
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
        """Floats that the threads share: what each block of a cache comes to, where they divide a text's blocks."""
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


LINE = 16  # floats of a line of the cache
INPUTS = 32  # to a multiple of which a linear map's inputs may be filled up


def lines(floats: int) -> int:
    """So many floats, rounded up to whole lines of the cache."""
    return -(-floats // LINE) * LINE


class Call:
    """A program with the addresses of all that it reads.

    A session makes one for each number of rows, and later sets only the addresses that have changed since: gathering
    them anew would take a quarter of a small model's step.
    """

    tokens: Any = None  # the session's own array of new tokens
    placed: "Placed | None" = None

    def __init__(self, run: NativeRun, outside: Sequence[Tensor], moved: Sequence[int] = (), ids: int = -1) -> None:
        """`moved`: numbers of the tensors that `place` sets; `ids`: that of the new tokens."""
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
        """From the next run on, read what depends on the place in the text from there."""
        self.placed, part = placed, self.part
        part.placed, part.moved_count = placed.address, len(placed.held)

    def again(self) -> "Call":
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


def run_at_once(calls: Sequence[Call]) -> list[Tensor]:
    """What each of these calls of one program returns, [L, W], from one run over the rows of all.

    Weights are read once for all of them. A row is summed as in a run of its own, and so the same to the bit.
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


class WholeStep:
    """A step that is one program, from the inputs of a captured step (`engine.capture.program`) to its logits."""

    def __init__(self, run: NativeRun, order: Sequence[int]) -> None:
        """`order`: which of the inputs the program reads."""
        self.run, self._order = run, order

    def __call__(self, *inputs: Tensor) -> Tensor:
        (logits_BLV,) = self.run(*[inputs[index] for index in self._order])
        return logits_BLV

    def call(self, inputs: Sequence[Tensor], moved: Sequence[int]) -> Call:
        """A call on these inputs; those numbered `moved` are placed before each run."""
        outside = [inputs[index] for index in self._order]
        self.run.require_buffers(outside)
        return Call(self.run, outside, self._read(moved), self.ids)

    def set_inputs(self, call: Call, inputs: Mapping[int, Tensor]) -> None:
        """Let `call` read these inputs, by number, instead of others of the same sizes."""
        read = self._read(inputs)
        call.held = [self.run.prepare(at, inputs[self._order[at]]) for at in read]
        for at, tensor in zip(read, call.held, strict=True):
            call.addresses[at] = tensor.data_ptr()

    def placed(self, inputs: Mapping[int, Tensor]) -> "Placed":
        """Those of `inputs`, by number, that the program reads."""
        held = [self.run.prepare(at, inputs[self._order[at]]) for at in self._read(inputs)]
        addresses = (ctypes.c_void_p * len(held))(*[tensor.data_ptr() for tensor in held])
        return Placed(ctypes.addressof(addresses), addresses, held)

    def _read(self, inputs: Collection[int]) -> list[int]:
        return [at for at, one in enumerate(self._order) if one in inputs]

    @property
    def ids(self) -> int:
        """Which of the addresses is that of the tokens; -1 where it reads none."""
        return self._order.index(0) if 0 in self._order else -1


class WholeReading:
    """The reading of a source that is one program, from ids [1, S] and biases to the keys and values of all layers.

    It writes them into caches, in fp32.
    """

    MOST_CALLS = 64  # that are kept, each for sources and caches of one size

    def __init__(self, run: NativeRun, order: Sequence[int]) -> None:
        """`order`: which of the inputs the program reads."""
        self._run, self._order = run.writing(len(order)), order
        self._heads = run.heads
        self._calls: dict[tuple[int, int], tuple[Sequence[Tensor], Call]] = {}

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Keys and values [1, H, S, D] in turn."""
        tokens = inputs[0].shape[1]
        buffers = [torch.empty(1, heads, tokens, channels) for heads, channels in self._heads]
        self.into(buffers, *inputs)
        return buffers

    def into(self, buffers: Sequence[Tensor], *inputs: Tensor) -> None:
        """Write them into the first S slots of `buffers` [1, H, C, D]."""
        outside, first = [inputs[index] for index in self._order], len(self._order)
        size = inputs[0].shape[1], buffers[0].shape[2]
        biases = [one for one in outside if one is not inputs[0]]
        known, call = self._calls.get(size, ((), None))
        if call is None or any(one is not other for one, other in zip(biases, known, strict=True)):
            if len(self._calls) >= self.MOST_CALLS:
                self._calls.clear()
            self._run.require_buffers(given := [*outside, *buffers, torch.arange(size[0])])
            call = Call(self._run, given)
            del call.held[len(outside) : -1]  # the caches, whose memory the calls of a size must not keep
            self._calls[size] = biases, call
        addresses = call.addresses
        addresses[self._order.index(0)] = inputs[0].data_ptr()
        for number, buffer in enumerate(buffers, first):
            addresses[number] = buffer.data_ptr()
        call.run(())


class Placed(NamedTuple):
    """Tensors that depend on the place in the text; `address` is that of the array of their addresses."""

    address: int
    addresses: Any
    held: list[Tensor]


def _whole(module: GraphModule) -> WholeStep | None:
    """`module` without its graph, if that is one program."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    made = [node for node in module.graph.nodes if node.op in ("call_function", "call_method") and not _is_size(node)]
    (output,) = next(node for node in module.graph.nodes if node.op == "output").args
    if len(made) != 2 or not isinstance(made[0].target, NativeRun) or made[1] is not output:
        return None
    if not set(made[0].args) <= set(placeholders):
        return None
    return WholeStep(made[0].target, [placeholders.index(node) for node in made[0].args])


def _whole_reading(module: GraphModule) -> WholeReading | None:
    """`module` without its graph, if that is one program which returns several heads' rows."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    made = [node for node in module.graph.nodes if node.op in ("call_function", "call_method") and not _is_size(node)]
    (output,) = next(node for node in module.graph.nodes if node.op == "output").args
    if not made or not isinstance(made[0].target, NativeRun) or not isinstance(output, list | tuple):
        return None
    if made[1:] != list(output) or len(made[0].target.heads) < len(output):
        return None
    if placeholders[0] not in made[0].args or not set(made[0].args) <= set(placeholders):
        return None
    return WholeReading(made[0].target, [placeholders.index(node) for node in made[0].args])


class Places:
    """The `Placed` of a step over so many tokens by the length of the text before them, as C looks it up, too."""

    def __init__(self, slots: int) -> None:
        self.addresses = (ctypes.c_void_p * (slots + 1))()
        self._held: dict[int, Placed] = {}

    def get(self, length: int) -> Placed | None:
        return self._held.get(length)

    def put(self, length: int, placed: Placed) -> None:
        self.addresses[length], self._held[length] = placed.address, placed


class RawChoice(ctypes.Structure):
    """`Choice` of kernels.c."""

    _fields_ = [
        ("logits", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("short_floats", "stride", "vocabulary")),
        ("how", RawSampling), *((name, ctypes.c_void_p) for name in ("uniforms", "rows", "tokens", "ends")),
        ("end_count", ctypes.c_int64),
    ]  # fmt: skip


class Rollout:
    """Steps of one program, each of which reads the token chosen after the step before; made once, run often."""

    def __init__(self, calls: Sequence[Call], ids: int, choice: Choice, eos_ids: frozenset[int]) -> None:
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

        The last token is NOT_DRAWN where its row is not finite. `uniform_G`: random numbers for the choices; None at
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
