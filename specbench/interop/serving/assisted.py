"""`transformers`' assisted generation as an engine: `generate` is watched from outside while it works.

A streamer, through which `generate` hands out tokens as they are decided, sees the end of a step or pass. Hooks on the
target's module see its run. Drafting is seen in the draft's own `generate`, which assisted generation calls in every
pass with one prompt, caches and settings prepared anew. So c, v and overhead belong to assisted generation.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from specbench.analysis.proof.departures import first_place
from specbench.bench.baselines import at_fixed_gamma, generate
from specbench.engine.session import Prompt
from specbench.interop.serving.engine import Generated
from specbench.interop.serving.settings.engines import sampling_keywords
from specbench.records.timed_rounds import Timed
from specbench.sampling import Sampling


def engine_name() -> str:
    """The engine and its version, as records name it."""
    return f"transformers {version('transformers')}"


class AssistedGeneration:
    """`target.generate(assistant_model=draft)` of two `transformers` networks.

    Args:
        now: seconds on a clock that waits for the device.
        max_new_tokens: of a whole text.
    """

    def __init__(
        self,
        target: Any,
        draft: Any,
        sampling: Sampling,
        max_new_tokens: int,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.must_be_equal = False  # bfloat16 rounds differently in a pass; the share of equal completions is shown
        self.name = engine_name()
        self.target, self.draft = target, draft
        self.max_new_tokens = max_new_tokens
        self.now = now
        self._sampling = sampling_keywords(sampling.temperature, sampling.top_k, sampling.top_p)

    def time_steps(self, begun: Prompt, tokens: int) -> list[float]:
        watch = Watch(self.now)
        generate(self.target, begun, tokens, streamer=watch, **self._sampling)
        return watch.spans()

    def time_verifications(self, begun: Prompt, gamma: int, tokens: int) -> list[Timed]:
        """The passes of one assisted generation; what a pass takes beside draft and target counts as accepting."""
        watch = Watch(self.now)
        with self._watched(watch):
            helper = at_fixed_gamma(self.draft, gamma)
            generate(self.target, begun, tokens, streamer=watch, assistant_model=helper, **self._sampling)
        found, room = list[Timed](), tokens
        passes = zip(watch.spans(), watch.written, watch.drafted_by_pass(), watch.verified_s, strict=True)
        for number, (span, written, (drafted, draft_s), verify_s) in enumerate(passes):
            accepted = first_place(drafted, written)  # drafted tokens that equal the emitted
            rest = span - draft_s - verify_s
            asked = min(gamma, room - 1)
            found.append(Timed(asked, len(drafted), accepted, number == 0, draft_s, verify_s, rest))
            room -= len(written)
        return found

    def generate(self, prompt: Prompt, gamma: int | None, seed: int) -> Generated:
        helping = {} if gamma is None else {"assistant_model": at_fixed_gamma(self.draft, gamma)}
        device = self.target.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            began = self.now()
            tokens = generate(self.target, prompt, self.max_new_tokens, **helping, **self._sampling)
            return Generated(len(tokens), self.now() - began, tuple(tokens))

    @contextmanager
    def _watched(self, watch: "Watch") -> Iterator[None]:
        """`watch` sees the runs of the target and what the draft generates."""
        own = self.draft.generate

        def drafting(*positional: Any, **keywords: Any) -> Any:
            began = self.now()
            output = own(*positional, **keywords)
            ids = keywords["decoder_input_ids" if "decoder_input_ids" in keywords else "input_ids"]
            watch.drafted(output.sequences[0, ids.shape[-1] :].tolist(), self.now() - began)
            return output

        hooks = [
            self.target.register_forward_pre_hook(lambda *_: watch.run_begins()),
            self.target.register_forward_hook(lambda *_: watch.run_ends()),
        ]
        self.draft.generate = drafting
        try:
            yield
        finally:
            del self.draft.generate  # the class's own again
            for hook in hooks:
                hook.remove()


class Watch:
    """A streamer that records when tokens come out, and the drafting and runs before. It starts when it is created."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._at: list[float] = []
        self._ended = 0.0
        self._prompt_seen = False
        self._runs: list[float] = []
        self._drafts: list[tuple[int, list[int], float]] = []  # the number of the pass, its tokens, seconds
        self.verified_s: list[float] = []
        self.written: list[list[int]] = []
        self._began = now()

    def put(self, value: Tensor) -> None:
        """Called by `generate` with the prompt, then with the tokens of each step or pass."""
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        self._at.append(self._now())
        self.written.append(value.flatten().tolist())

    def end(self) -> None:
        """Called by `generate` when the completion is whole; little happens after that."""
        self._ended = self._now()

    def run_begins(self) -> None:
        self._runs.append(self._now())

    def run_ends(self) -> None:
        self.verified_s.append(self._now() - self._runs.pop())

    def drafted(self, tokens: list[int], seconds: float) -> None:
        self._drafts.append((len(self.written), tokens, seconds))

    def spans(self) -> list[float]:
        """Seconds of each step or pass; the first from the beginning, and with what came after the last."""
        seconds = [after - before for before, after in pairwise([self._began, *self._at])]
        return [seconds[0] + self._ended - self._at[-1], *seconds[1:]]

    def drafted_by_pass(self) -> list[tuple[list[int], float]]:
        """The drafted tokens of each pass, and the seconds; none if there was no room."""
        found: list[tuple[list[int], float]] = [([], 0.0)] * len(self.written)
        for number, tokens, seconds in self._drafts:
            found[number] = (tokens, seconds)
        return found
