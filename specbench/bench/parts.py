"""Parts of the benchmark: growth with tokens and context, the least time of a step, batches, rollouts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from statistics import median
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from specbench.algorithm.acceptance.base import PendingProposal, Verification
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.acceptance.verify import target_rows, verdict_on_host
from specbench.algorithm.batching import together
from specbench.algorithm.decoding import DecodingSpec, autoregress, autoregressive, speculative
from specbench.algorithm.draft import Draft
from specbench.bench.baselines import generate_many
from specbench.bench.timing import Decoder, medians
from specbench.engine.batch import Batch
from specbench.engine.capture.nodes import constant
from specbench.engine.capture.static import StaticModel
from specbench.engine.eager.model import EagerModel
from specbench.engine.session import Model, Prompt, Session, WrappedModel, innermost, warm_up_and_capture
from specbench.methods.model.draft import ModelDraft
from specbench.records.decoded import Pass
from specbench.sampling import Sampling, TokenChoice, standardise

TOKENS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
REPEATS = 50
LENGTHS = (16, 64, 128, 256, 512)
VOCABULARIES = (8_000, 32_000, 128_000)
GAMMA = 4  # where only the vocabulary varies


def stepping(session: Session, tokens: int) -> Callable[[], Any]:
    """One run over `tokens` new tokens, and back, so that it can be done again at the same place."""
    new = [2 + 3 * index for index in range(tokens)]

    def step() -> None:
        before = session.length
        session.extend(new)
        session.rollback(before)

    return step


def experts_over_tokens(model: Model, prompt: Prompt) -> dict[int, float]:
    """The experts that a run over so many tokens reads, in multiples of a step there; empty without experts."""
    experts, session, found = model.experts, model.start(prompt), {}
    session.extend([5] * 16)
    for count in TOKENS if experts is not None else ():
        assert experts is not None
        experts.begin()
        stepping(session, count)()
        found[count] = sum(experts.distinct(experts.taken()))
    return {count: read / found[1] for count, read in found.items()}


def over_tokens(
    model: Model, prompt: Prompt, counts: Sequence[int] = TOKENS, first: Sequence[int] = (5,) * 16,
    repeats: int = REPEATS,
) -> dict[int, float]:  # fmt: skip
    """Seconds of one run over so many tokens, at the same place of a completion: after its `first` tokens."""
    session = model.start(prompt)
    session.extend(first)
    steps = {str(count): stepping(session, count) for count in counts}
    warm_up_and_capture(model, prompt, session.length, steps.values())
    timed = medians(steps, model.now, repeats)
    return {int(count): seconds for count, seconds in timed.items()}


def bytes_cached(model: Model, tokens: int) -> int:
    """The bytes of keys and values, or of states, that a decoder-only model caches of so many tokens."""
    own: Any = innermost(model)
    if own.recurrence is not None:
        return int(own.bytes_of_session(tokens))
    cached = own.steps_of_rows(1) if own.program is None else own.program
    return int(
        tokens * cached.cache_dtype.itemsize * sum(heads * channels for heads, channels in cached.shapes["self"])
    )


def over_lengths(model: Model, prompt: Prompt) -> dict[int, float]:
    """Seconds of one step after so many tokens."""
    session = model.start(prompt)
    found = {}
    for length in LENGTHS:
        if length > session.length and (model.longest is None or length + 1 < model.longest):
            session.extend([5] * (length - session.length))
            step = stepping(session, 1)
            warm_up_and_capture(model, prompt, length + 1, [step])
            found[length] = medians({"step": step}, model.now, REPEATS)["step"]
    return found


def over_vocabularies(model: Model, device: torch.device, prompt: Prompt) -> dict[int, float]:
    """Seconds of everything that a sampled pass does with distributions: q and p standardised, a block accepted.

    On a GPU of the verdict, from the target's logits to what the host reads: q is part of the draft's graph.
    """
    generator = torch.Generator(device=device).manual_seed(0)
    sampled = Sampling(temperature=1.0)
    verification = Verification(accept_exact, sampled)
    found = {}
    for size in VOCABULARIES:
        logits = torch.randn(2 * GAMMA + 1, size, device=device)
        tokens = torch.tensor([1, 2, 3, 4], device=device)
        pending = PendingProposal(tokens, standardise(logits[:GAMMA], sampled, size), tokens[:0])

        def accept(logits: torch.Tensor = logits, size: int = size, pending: PendingProposal = pending) -> None:
            if device.type == "cpu":
                q_GV = standardise(logits[:GAMMA], sampled, size)
                p_GV = standardise(logits[GAMMA:], sampled, size)
                accept_exact(p_GV, q_GV, [1, 2, 3, 4], generator)
                return
            rows = target_rows(logits[GAMMA:], pending, verification, size, model.repeat)
            verdict_on_host(rows, pending, verification, generator, model.repeat)

        warm_up_and_capture(model, prompt, 1, [accept])
        found[size] = medians({"accept": accept}, model.now, REPEATS // 2)["accept"]
    return found


# Operations that only say how a tensor is seen, by the name of torch's function, operator or method.
VIEWS = {
    "view", "reshape", "size", "sym_size", "getitem", "split_with_sizes", "transpose", "unsqueeze", "squeeze", "expand",
    "slice", "select", "permute", "t", "flatten", "unbind", "alias", "detach", "contiguous",
}  # fmt: skip
LOOKUPS = {"embedding"}


@dataclass(frozen=True)
class Budget:
    """The work of one captured step: kernel launches, and bytes of weights read.

    Counted in the graph, not measured: every operation that computes or moves data is a kernel, whatever a library
    makes of it; a look-up in an embedding reads single rows and counts as nothing.
    """

    kernels: int
    weight_bytes: int

    def seconds(self, bytes_per_second: float, launch_s: float, more_bytes: float = 0.0) -> float:
        """The least time of a step in seconds, from a device's bandwidth and the time to start a kernel.

        The step reads `more_bytes` of caches.
        """
        return (self.weight_bytes + more_bytes) / bytes_per_second + self.kernels * launch_s


def budget(parts: Sequence[Callable[..., Any]]) -> Budget | None:
    """The budget of `parts`, which run one after another, such as the parts of a `program.Step`.

    None if a part is no longer a graph, as after torch.compile.
    """
    modules = [getattr(part, "__self__", None) for part in parts]
    graphs = [module for module in modules if isinstance(module, GraphModule)]
    if len(graphs) < len(modules):
        return None
    weights: dict[int, Tensor] = {}
    kernels = 0
    for graph in graphs:
        for node in graph.graph.nodes:
            kernels += _is_kernel(node)
            weight = constant(graph, node)
            if weight is not None and any(_name(user) not in LOOKUPS for user in node.users):
                weights[id(weight)] = weight
    return Budget(kernels, sum(weight.nbytes for weight in weights.values()))


def _is_kernel(node: Node) -> bool:
    if node.op not in ("call_function", "call_method") or getattr(node.target, "__module__", None) == "_operator":
        return False  # arithmetic on sizes, an element of a tuple
    return _name(node) not in VIEWS


def _name(node: Node) -> str:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return name.partition(".")[0]


LENGTH = 64  # tokens of the completion that the step follows


def bound(
    model: Model, prompt: Prompt, gb_per_s: float, launch_us: float
) -> tuple[float | None, str, dict[str, float]]:
    """Milliseconds of a step over one token after LENGTH tokens, a note on what they are made of, and its numbers.

    It reads its weights and the whole of its caches at `gb_per_s`, and starts each kernel in `launch_us`. None if
    the engine runs no graph of kernels.
    """
    counted = None
    if isinstance(model, StaticModel):
        step = model.program.one
        # A CUDA graph computes masks and position biases itself; elsewhere they are cached.
        counted = budget([step.of_source, step.of_layout, step.run] if model.engine == "cudagraph" else [step.run])
    if counted is None or not isinstance(model, StaticModel):
        return None, "not counted: this engine runs no graph of kernels", {}
    slots = {"self": model.capacity(LENGTH), "cross": model.source_slots(len(prompt.source))}
    shapes = model.program.shapes
    numbers = sum(heads * channels * slots[kind] for kind, each in shapes.items() for heads, channels in each)
    cache_bytes = numbers * model.program.cache_dtype.itemsize
    weight_bytes = counted.weight_bytes
    if model.experts is not None:  # which no graph holds as its own
        weight_bytes += model.experts.of_a_token * next(model.network.parameters()).itemsize
    read = weight_bytes + cache_bytes
    note = f"{counted.kernels} kernels at {launch_us:g} us, {read / 1e6:.1f} MB at {gb_per_s:.0f} GB/s"
    more = {"kernels": counted.kernels, "weight_bytes": weight_bytes, "cache_bytes": cache_bytes}
    seconds = counted.seconds(gb_per_s * 1e9, launch_us / 1e6, read - counted.weight_bytes)
    return 1000 * seconds, note, {name: float(number) for name, number in more.items()}


def groups_of(prompts: list[Prompt], rows: int) -> list[list[Prompt]]:
    """`prompts` in groups of `rows`; the first prompts fill up the last group."""
    count = -(-len(prompts) // rows)
    filled = [prompts[index % len(prompts)] for index in range(count * rows)]
    return [filled[start : start + rows] for start in range(0, len(filled), rows)]


def batch_decoders(
    target: Model, network: object, groups: list[list[Prompt]], rows: int, max_new_tokens: int
) -> tuple[Decoder, Decoder]:
    """Our batched baseline and `generate` of the same batch, with encoder and prefill, on the group of a number.

    Tokens are the group's completions one after another.
    """
    batch, spec = Batch.of(target, rows), DecodingSpec.algorithm_1(Sampling(), max_new_tokens)

    def ours(index: int) -> tuple[float, list[int]]:
        began = target.now()
        traces = together(
            (autoregress(batch, prompt, spec, torch.Generator(batch.device)) for prompt in groups[index]), rows, batch
        )
        return target.now() - began, [token for trace in traces for token in trace.tokens]

    def theirs(index: int) -> tuple[float, list[int]]:
        began = target.now()
        texts = generate_many(network, groups[index], max_new_tokens, target.eos_ids)
        return target.now() - began, [token for text in texts for token in text]

    return ours, theirs


def why_step_by_step(draft: Draft, prompt: Prompt, gammas: Sequence[int], tokens: int) -> str | None:
    """Why `draft` would draft step by step although its steps should be one graph; None if it would not.

    Captures what greedy completions of up to `tokens` tokens after `prompt` replay at `gammas`.
    """
    models = [model for model in draft.models if isinstance(model, EagerModel)]
    for gamma in gammas:
        draft.expect(Sampling(), [gamma])
        for model in models:
            model.get_ready(prompt, tokens)
    return next((model.report.rollout_fell_back for model in models if model.report.rollout_fell_back), None)


@dataclass(frozen=True)
class PassParts:
    """Seconds of one pass over `gamma` drafted tokens, by part."""

    whole: float
    drafting: float  # M_q over gamma tokens, one after the other, only the model
    choosing: float  # the drafted tokens chosen from its logits
    verifying: float  # M_p over gamma + 1 tokens, only the model
    scoring: float  # p, or at T = 0 its best tokens, at gamma + 1 positions
    accepting: float  # the rule, the next token, and both caches rolled back
    overhead: float  # the rest beside the models' steps: choosing tokens for both, accepting


class TooShort(Exception):
    """No completion has a second pass that drafts all of gamma."""


def take_apart(
    target: Model, draft: ModelDraft, prompts: list[Prompt], gamma: int, tokens: int
) -> tuple[PassParts, float]:
    """The parts of a greedy pass, medians over passes, and the model's part of a step of the target alone.

    They are timed in the loop of Python, one pass at a time, also if an engine would run several in one call. Timed
    by themselves and repeatedly at one place they would be faster, since a cache then holds what a pass has to fetch.
    Raises TooShort.
    """
    generator = torch.Generator(device=target.device)
    spec = DecodingSpec.algorithm_1(Sampling(), tokens, gamma)
    checking, proposing = TimedModel(target), TimedModel(draft.model)
    timed_draft = ModelDraft(proposing, draft.vocabulary_size)
    found: list[PassParts] = []
    steps: list[float] = []
    for prompt in prompts:
        checking.runs.clear()
        autoregressive(checking, prompt, spec, generator)
        steps += [seconds for _, seconds in checking.runs]
        checking.runs.clear()
        proposing.runs.clear()
        trace = speculative(checking, timed_draft, prompt, spec, generator)
        # Not the first pass, which prepares tensors that later passes reuse.
        found += [parts for parts, count in _by_pass(trace.passes, checking, proposing)[1:] if count == gamma]
    if not found:
        raise TooShort
    return PassParts(*(median(getattr(one, field.name) for one in found) for field in fields(PassParts))), median(steps)


def _by_pass(passes: Sequence[Pass], checking: "TimedModel", proposing: "TimedModel") -> list[tuple[PassParts, int]]:
    """Each pass in parts, with the tokens that it drafted. A pass ends with the target's run."""
    found = []
    ends = [0.0, *(ended for ended, _ in checking.runs)]
    for a_pass, (before, after), (_, verifying) in zip(passes, pairwise(ends), checking.runs, strict=True):
        drafting = sum(seconds for ended, seconds in proposing.runs if before < ended <= after)
        whole = a_pass.draft_s + a_pass.verify_s + a_pass.accept_s
        parts = PassParts(
            whole, drafting, choosing=a_pass.draft_s - drafting, verifying=verifying,
            scoring=a_pass.verify_s - verifying, accepting=a_pass.accept_s, overhead=whole - drafting - verifying,
        )  # fmt: skip
        found.append((parts, a_pass.drafted))
    return found


class TimedModel(WrappedModel):
    """A model that notes when each run of its sessions ended and how long it took: (seconds on its clock, seconds)."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.repeat, self.rolls_out = model.repeat, model.rolls_out  # type: ignore[method-assign]
        self.runs: list[tuple[float, float]] = []

    def expect_rollouts(self, choice: TokenChoice, steps: Sequence[int]) -> None:
        self.model.expect_rollouts(choice, steps)

    def start(self, prompt: Prompt) -> Session:
        """The model's own session with `extend` and `rollout` wrapped: timing adds as little as it can to a pass."""
        session = self.model.start(prompt)
        for name in ("extend", "rollout"):
            setattr(session, name, self._timed(session, getattr(type(session), name)))
        return session

    def _timed(self, session: Session, method: Callable[..., Any]) -> Callable[..., Any]:
        now, note = self.now, self.runs.append
        itself = ref(session)  # a session that holds itself would keep its buffers until Python looks for such circles

        def timed(*args: Any) -> Any:
            began = now()
            result = method(itself(), *args)
            ended = now()
            if result is not None:  # no rollout has been captured: the steps follow
                note((ended, ended - began))
            return result

        return timed
