"""A captured step as a program of C kernels: the model."""

import contextlib
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from specbench.engine.batch_steps import CapturedSteps, RowByRow
from specbench.engine.capture.lower import Lowering
from specbench.engine.capture.program import Program, captured_function
from specbench.engine.capture.static import StaticModel
from specbench.engine.capture.torch_private import computes_bf16
from specbench.engine.native.lookups import Lookups
from specbench.engine.native.lowering import ShortCaches, lower_native, lower_native_invariant
from specbench.engine.native.native_run import run_at_once
from specbench.engine.native.native_sessions import NativeSession, WindowedNative
from specbench.engine.native.passes import NativePasses
from specbench.engine.native.prefill import PROMPT_ROWS, LoweredPrompt
from specbench.engine.native.whole import WholeStep
from specbench.engine.reads import Read
from specbench.engine.session import PassPlan, Prompt, Session
from specbench.errors import first_line
from specbench.sampling import TokenChoice


class NativeModel(StaticModel):
    """A `StaticModel` whose steps run in kernels of ours, compiled on this machine. Needs a C compiler."""

    engine = "native"
    rolls_out = True
    lowering: Lowering = staticmethod(lower_native)
    invariant_lowering: Lowering = staticmethod(lower_native_invariant)
    prompt_lowering: Lowering = LoweredPrompt
    most_rows: int | None = None

    def _captured(self, lowering: Lowering) -> Program:
        """The network's program, its caches in the model's bf16 if our kernels read them in all of its layers.

        A source's keys and values stay in fp32: sources are short, and each step reads them again.
        """
        short = self.network.dtype == torch.bfloat16 and not self.is_encoder_decoder
        if short:
            with contextlib.suppress(ShortCaches):
                return Program.of(self.network, torch.bfloat16, lowering, self.packed, of_prompt=self.prompt_lowering)
        return super()._captured(lowering)

    @cached_property
    def lookups(self) -> Lookups:
        """The values that its sessions look up once."""
        return Lookups()

    def _forget_placed(self) -> None:
        self.lookups.clear()
        super()._forget_placed()

    def start(self, prompt: Prompt) -> NativeSession:
        return NativeSession(self, prompt) if self.window is None else WindowedNative(self, prompt, self.window)

    @cached_property
    def reads_prompts(self) -> bool:
        """Whether our kernels read prompts of any length."""
        run = self.program.prompt.run
        return self.torch_is_slow or (isinstance(run, LoweredPrompt) and run.is_always_native)

    @cached_property
    def torch_is_slow(self) -> bool:
        """Whether torch's linear maps over many rows are: in bf16 on a processor without instructions for it."""
        return self.network.dtype == torch.bfloat16 and not computes_bf16()

    def ready(self, function: Callable[..., Tensor], widths: Sequence[int]) -> Callable[..., Tensor]:
        """`function` in our kernels, or, with a warning, as it is if it cannot be captured."""
        like = next(self.network.parameters())[..., :0]
        try:
            with torch.inference_mode():
                return captured_function(function, widths, like, self.lowering, self.packed)
        except Exception as error:  # whatever its modules raise when they are captured
            warnings.warn(
                f"a draft's heads cannot be captured: {first_line(error)}; they run eagerly, which is slower",
                stacklevel=2,
            )
            return function

    def steps_of_rows(self, rows: int) -> CapturedSteps:
        """The step in parts, some of them torch's; row by row if torch's parts are slow."""
        if self.torch_is_slow:
            self.require_batches(rows)
            steps = (RowByRow if rows > 1 else CapturedSteps)(self.program, self.program)
        else:
            steps = super().steps_of_rows(rows)
        steps.most_of_prompt = PROMPT_ROWS if self.reads_prompts else None
        return steps

    @property
    def reads_at_once(self) -> bool:
        """Whether one run reads for several sessions: if a step is one program, with parts of any sequences."""
        return all(isinstance(step.run, WholeStep) for step in (self.program.one, self.program.several))

    @torch.inference_mode()
    def read_at_once(self, reads: Sequence[Read]) -> list[Tensor]:
        """The logits of each of `reads`, of different sessions, from one run."""
        step = self.program.several if any(len(read.tokens) > 1 for read in reads) else self.program.one
        calls = [cast(NativeSession, session).due(step, tokens, parents) for session, tokens, parents in reads]
        found = run_at_once(calls)
        for (session, tokens, parents), logits_LV in zip(reads, found, strict=True):
            cast(NativeSession, session).has_read(logits_LV, tokens, parents)
        return found

    def chooses(self, choice: TokenChoice) -> bool:
        """Whether the kernels choose tokens by `choice`: a step is one program with all logits; they have no min-p."""
        runs = [step.run for step in (self.program.one, self.program.several)]
        needed = choice.vocabulary_size + self.state_width  # states lie beside the logits
        fits = all(isinstance(run, WholeStep) and run.run.widths[0] >= needed for run in runs)
        return fits and choice.sampling.min_p is None

    def passes(self, session: Session, draft: Session | None, plan: PassPlan, tokens: list[int]) -> NativePasses | None:
        """Passes with `session` and `draft` in calls of the kernels; None if these cannot run them."""
        usual = self.lookups.pace.tokens
        if not (isinstance(session, NativeSession) and session.passes_in_calls(plan.choosing, plan.end, usual)):
            return None
        if draft is None:
            return NativePasses(session, None, plan, tokens, self.lookups.pace, self.eos_ids)
        if not (isinstance(draft, NativeSession) and draft.passes_in_calls(plan.drafting, plan.end, usual)):
            return None
        drafting, choosing = plan.drafting, plan.choosing
        if draft.model is self or draft.model.eos_ids != self.eos_ids:
            return None
        if drafting.vocabulary_size != choosing.vocabulary_size or (drafting.draws and not choosing.draws):
            return None
        return NativePasses(session, draft, plan, tokens, self.lookups.pace, self.eos_ids)
