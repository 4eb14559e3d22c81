"""A draft that is itself decoded speculatively, with a cheaper draft of its own (section 6 of the paper).

The paper calls this hierarchical speculation: bigram to T5-small to T5-XXL. The inner loop is Algorithm 1, with the
middle model as its target. It is lossless, so the tokens that it emits are draws from the middle model's distribution
given the tokens before, and that row of the verification is the q that the target's test must use, for the accepted
tokens and for the token that follows them alike. The inner draft's own distribution has no effect outside.

An inner pass never drafts more tokens than were requested, so nothing has to be cut off.

A tree is the middle model's own, node for node and on the same random numbers: its children are chosen from the middle
model's rows. The inner draft guesses which nodes those will be. Its likeliest tokens are read together with the end of
the text, and a level of the tree whose nodes were all guessed needs no run of the middle model.

Shapes: G drafted tokens, L positions, V logits of the head.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import RESIDUAL_EPSILON, Proposal, Verification
from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.acceptance.verify import standardised, target_rows, verdict_on_host
from specbench.algorithm.continuations import Continuations
from specbench.algorithm.decoding import Passes
from specbench.algorithm.draft import AnyProposal, Draft, operations_of, read_of
from specbench.engine.clock import RUNS
from specbench.engine.eager.model import EagerModel
from specbench.engine.reads import Reading
from specbench.engine.session import MOST_UNREAD, Model, PassesInCalls, PassPlan, Prompt, Session, up_to_end
from specbench.kernels.rows import ALGORITHM_1
from specbench.loading import require_room
from specbench.loading.model_loader import Say
from specbench.methods.build import DraftBuilder, DraftRequest, builder_for, needed_of_target
from specbench.methods.cascade.config import CascadeConfig
from specbench.methods.model.builder import ModelBuilder
from specbench.methods.model.config import ModelDraftConfig
from specbench.methods.model.draft import ModelDraftSession
from specbench.methods.quantised.config import QuantisedConfig
from specbench.methods.quantised.draft import QuantisedBuilder, prompt_of
from specbench.sampling import Sampling, TokenChoice
from specbench.text.processed import processed
from specbench.theory.trees import ROOT

GREEDY = Sampling(temperature=0.0)


class CascadeDraft(Draft):
    """`middle`, which shares the target's vocabulary, drafting with `inner`, `inner_gamma` tokens at a time."""

    starts_on_target = False  # a middle model that is the target in fewer bits copies its prompt, and no more

    def __init__(
        self,
        middle: Model,
        inner: Draft,
        inner_gamma: int,
        vocabulary_size: int,
        trees: torch.device | None = None,
        copies_prompt: bool = False,
    ) -> None:
        """`trees`: for trees, on this device; the inner draft then drafts its likeliest tokens.

        `copies_prompt`: the middle model is the target in fewer bits, see `methods.quantised.draft`.
        """
        self.trees, self.copies_prompt = trees, copies_prompt
        self.model = middle
        self.models = (middle, *inner.models)
        self.vocabulary_size = vocabulary_size
        self.inner = inner
        self.parts = (inner,)
        self.inner_gamma = inner_gamma
        # As if the inner draft were never right. What a proposal really took depends on that, and is counted in it.
        self.operations = (inner_gamma + 1) * middle.operations + inner_gamma * inner.operations

    def start(self, prompt: Prompt, sampling: Sampling) -> "CascadeSession":
        return CascadeSession(self, self.model.start(prompt), prompt, sampling)

    def start_on(self, session: Session, prompt: Prompt, sampling: Sampling) -> "CascadeSession":
        if not self.copies_prompt:
            return self.start(prompt, sampling)
        with prompt_of(session, self.model):
            middle = self.model.start(prompt)
        return CascadeSession(self, middle, prompt, sampling)

    def expect(self, sampling: Sampling, gammas: Sequence[int]) -> None:
        self.inner.expect(sampling, (self.inner_gamma,))

    def in_batch(self, rows: int) -> "CascadeDraft":
        middle = self.model.in_batch(rows)
        inner = self.inner.in_batch(rows)
        return CascadeDraft(middle, inner, self.inner_gamma, self.vocabulary_size, self.trees, self.copies_prompt)


class CascadeSession(ModelDraftSession):
    """The sessions of the middle model and of the inner draft; the middle model scores."""

    def __init__(self, draft: CascadeDraft, middle: Session, prompt: Prompt, sampling: Sampling) -> None:
        """`middle`: the middle model's session, which has read `prompt`."""
        super().__init__(draft.model, middle, sampling, draft.vocabulary_size)
        self.rolls_out = False  # the middle model proposes nothing by itself
        self.draft = draft
        self.verification = Verification(accept_exact, sampling)
        inner_sampling = sampling if draft.trees is None else GREEDY
        self.inner = draft.inner.start_on(self.session, prompt, inner_sampling)
        self.passes = Passes(self.model, self.session, self.inner, self.verification)
        self._calls: PassesInCalls | None = None  # of texts of up to so many tokens:
        self._room = 0
        # While a tree is grown: the number under which the middle model has read each node, and the end of the text;
        # all that it has read, by parent and token; and the rows that followed.
        self._numbers: list[int] = []
        self._end = ROOT
        self._read: dict[tuple[int, int], int] = {}
        self._rows: list[Tensor] = []

    def proposing(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Reading[Proposal]:
        sequence, end = list(tokens), len(tokens) + gamma
        middle_operations, operations = self.model.operations, 0.0
        q_rows: list[Tensor] = []
        while len(sequence) < end:
            most = min(self.draft.inner_gamma, end - len(sequence) - 1)
            drafted = yield from self.inner.proposing(sequence, most, generator)
            inner, emitted, rows = self._in_one_call(sequence, drafted, generator) or (
                yield from self._step_by_step(sequence, drafted, generator)
            )
            q_rows += [] if rows is None else [rows]
            sequence += emitted
            # Every position that the middle model checked counts (Theorem 3.11).
            operations += (len(inner.tokens) + 1) * middle_operations
            operations += operations_of(self.draft.inner, inner.operations, len(inner.tokens))
            if sequence[-1] in self.model.eos_ids:
                break
        tokens_G = sequence[len(tokens) :]
        return Proposal(tokens_G, torch.cat(q_rows) if q_rows else None, operations)

    def _step_by_step(
        self, sequence: list[int], drafted: AnyProposal, generator: torch.Generator
    ) -> Reading[tuple[Proposal, list[int], Tensor | None]]:
        """Verify what the inner draft proposed: on the host, with the tokens that are emitted and p at each."""
        unread = sequence[self.session.length :]
        logits_LV = yield read_of(self.session, unread, drafted)
        rows = target_rows(logits_LV, drafted, self.verification, self.vocabulary_size)
        inner, (path, token) = verdict_on_host(rows, drafted, self.verification, generator)
        emitted = up_to_end([*(inner.tokens[node] for node in path), token], self.model.eos_ids)
        p_LV = standardised(rows, self.verification)
        self.passes.roll_back(len(sequence), len(unread), inner, path, emitted, logits_LV)
        return inner, emitted, None if p_LV is None else p_LV[: len(emitted)]

    def _in_one_call(
        self, sequence: list[int], drafted: AnyProposal, generator: torch.Generator
    ) -> tuple[Proposal, list[int], Tensor | None] | None:
        """`_step_by_step` in one call of the engine; None if it cannot.

        That is so after another draft's proposals, of which the middle model has read nothing.
        """
        size, gamma, needed = self.vocabulary_size, self.draft.inner_gamma, len(sequence) + self.draft.inner_gamma
        rule = ALGORITHM_1 if self.verification.argmax_only else self.verification.in_c
        if rule is None or self.inner.watches or not (isinstance(drafted, Proposal) and drafted.is_plain(gamma, size)):
            return None
        if len(sequence) - self.session.length > MOST_UNREAD:
            return None
        if needed > self._room:
            self._room, choice = 2 * needed, TokenChoice(self.sampling, size)
            end = min(self._room, self.model.longest or self._room)
            plan = PassPlan(gamma, end, choice, choice, RESIDUAL_EPSILON, rule)
            self._calls = self.model.passes(self.session, None, plan, sequence)
        if self._calls is None:
            return None
        done = self._calls.verify(sequence, drafted.tokens, drafted.q_GV, drafted.asked, generator)
        RUNS.add(done.target_ran_s)
        self.passes.roll_back(len(sequence), 1, drafted, done.path, done.emitted)
        p_LV = self._calls.p_rows(len(done.emitted)) if self.sampling.temperature > 0 else None
        return drafted, done.emitted, p_LV

    def after_text(self, tokens: Sequence[int], levels: int) -> Continuations:
        assert self.draft.trees is not None
        most = min(self.draft.inner_gamma, levels - 1)
        guess = self.inner.propose(tokens, most, torch.Generator(self.draft.trees))
        read = [*tokens[self.session.length :], *guess.tokens]
        self._end = len(read) - len(guess.tokens) - 1
        self._rows = list(self.session.extend(read, range(ROOT, len(read) - 1)))
        self._numbers = []
        self._read = {(node - 1, read[node]): node for node in range(self._end + 1, len(read))}
        operations = (len(guess.tokens) + 1) * self.model.operations
        operations += operations_of(self.draft.inner, guess.operations, len(guess.tokens))
        return self._predicted(self._rows[self._end].unsqueeze(0), operations)

    def after_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Continuations:
        """What follows nodes: the middle model has read the inner draft's own, and reads the others now."""
        first, missing = len(self._numbers), list[tuple[int, int]]()
        for token, parent in zip(tokens, parents, strict=True):
            key = (self._end if parent == ROOT else self._numbers[parent], token)
            if key not in self._read:
                self._read[key] = len(self._rows) + len(missing)
                missing.append(key)
            self._numbers.append(self._read[key])
        if missing:
            self._rows += self.session.extend([token for _, token in missing], [parent for parent, _ in missing])
        rows_LV = torch.stack([self._rows[number] for number in self._numbers[first:]])
        return self._predicted(rows_LV, len(missing) * self.model.operations)

    def select(self, path: Sequence[int]) -> None:
        """Select the path; unread tokens before the tree were read as a part of it."""
        self.session.select([*range(self._end + 1), *(self._numbers[node] for node in path)])

    def rollback(self, length: int) -> None:
        super().rollback(length)
        self.inner.rollback(length)


class CascadeBuilder(DraftBuilder[CascadeConfig]):
    """Builds `draft=cascade` from its two parts."""

    def __init__(self, request: DraftRequest[CascadeConfig]) -> None:
        super().__init__(request)
        draft, run, via, inner = self.draft, request.run, self.draft.via, self.draft.inner
        assert via is not None and inner is not None
        self.middle: ModelBuilder | QuantisedBuilder
        if isinstance(via, ModelDraftConfig):
            self.middle = ModelBuilder(request.part(replace(via, vocabulary="same"), "via", run))
            run = replace(run, target=via)  # the inner draft drafts for the middle model
        else:
            assert isinstance(via, QuantisedConfig)
            self.middle = QuantisedBuilder(request.part(via, "via", run))
        inner = replace(inner, cache_dir=inner.cache_dir or draft.cache_dir)
        self.inner = builder_for(request.part(inner, "inner", replace(run, gamma=draft.inner_gamma)))

    def fit(self, say: Say) -> None:
        self.inner.fit(say)

    def load(self, target: EagerModel, say: Say) -> Draft:
        middle = self.middle.load_model(say, needed_of_target([self.inner]))
        inner = self.inner.load(middle, say)
        self.models += [middle, *self.inner.models]
        trees = None if self.request.run.tree.shape == "none" else self.request.device
        vocabulary = self.request.vocabulary
        drafting = processed(middle, self.request.run.sampling, vocabulary)
        copies_prompt = isinstance(self.middle, QuantisedBuilder)
        return CascadeDraft(drafting, inner, self.draft.inner_gamma, vocabulary.size, trees, copies_prompt)

    def require_room(self, prompts: Sequence[Prompt]) -> None:
        require_room(self.request.run, self.models[0].longest, prompts)
        self.inner.require_room(prompts)
