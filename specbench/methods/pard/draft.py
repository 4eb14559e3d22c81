"""PARD: a model of its own that drafts a whole proposal in one forward pass.

2504.18583: a decoder-only model is trained on to read copies of one mask token in place of tokens that are not known
yet. It reads the text's new tokens and γ - 1 mask tokens; the row after the last token of the text is q of the first
draft token, the row after the k-th mask token q of the one k places later. Given the text the tokens are independent,
so that Algorithm 1 is exact. The mask tokens' keys and values are dropped.

A published checkpoint (amd/PARD-*) is an ordinary folder of `transformers`, whose config has `pard_token`. It runs in
every engine as any model does.

Shapes: L positions, K tokens ahead, V logits.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.algorithm.acceptance.base import Proposal
from specbench.algorithm.draft import AnyProposal, Draft, ProposesByReading
from specbench.config.keys import MAX_GAMMA
from specbench.config.model import name_of
from specbench.engine.eager.model import EagerModel
from specbench.engine.reads import Read, Reading, answered
from specbench.engine.session import Model, Prompt
from specbench.engine.weights.published_checkpoint import CONFIG, read_config
from specbench.errors import UserError
from specbench.loading import require_a_pair
from specbench.loading.model_loader import ModelRequest, Say
from specbench.methods.at_once import AtOnceSession, RowsAlong, independent_proposal
from specbench.methods.build import DraftBuilder, DraftRequest, source_of
from specbench.methods.heads import require_weights
from specbench.methods.pard.config import FIELD, PardConfig
from specbench.sampling import Sampling
from specbench.text.processed import processed
from specbench.text.tokenizer import load_tokenizer
from specbench.text.vocabulary import require_same_vocabulary


class PardDraft(Draft):
    """`model`, which reads copies of the token `mask`."""

    def __init__(self, model: Model, mask: int, device: torch.device) -> None:
        self.target = self.model = model  # its tokens are the target's
        self.models = (model,)
        self.mask, self.device, self.operations = mask, device, model.operations

    def start(self, prompt: Prompt, sampling: Sampling) -> "PardSession":
        return PardSession(self, prompt, sampling)

    def in_batch(self, rows: int) -> "PardDraft":
        return PardDraft(self.model.in_batch(rows), self.mask, self.device)


class PardSession(AtOnceSession, ProposesByReading):
    """The model's session, which has read no more than the text."""

    draft: PardDraft

    def __init__(self, draft: PardDraft, prompt: Prompt, sampling: Sampling) -> None:
        self.draft, self.sampling = draft, sampling
        self.session = draft.model.start(prompt)
        self._scored = RowsAlong(draft.model, prompt, [draft.mask] * MAX_GAMMA, draft.device, own=True)

    def proposing(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Reading[AnyProposal]:
        ahead_KV = yield from self._reading(tokens, gamma)
        if ahead_KV is None:
            return Proposal([])
        return independent_proposal(ahead_KV, self.sampling, self.draft.model, generator)

    def propose(self, tokens: Sequence[int], gamma: int, generator: torch.Generator) -> Proposal:
        return ProposesByReading.propose(self, tokens, gamma, generator)

    def ahead(self, tokens: Sequence[int], most: int) -> Tensor | None:
        return answered(self._reading(tokens, most))

    def _reading(self, tokens: Sequence[int], most: int) -> Reading[Tensor | None]:
        longest = self.draft.model.longest
        count = most if longest is None else min(most, longest - len(tokens) + 1)
        if count <= 0:
            return None
        self.session.rollback(len(tokens) - 1)
        logits_LV = yield Read(self.session, [*tokens[self.session.length :], *[self.draft.mask] * (count - 1)])
        self.session.rollback(len(tokens))
        return logits_LV[-count:]

    def rollback(self, length: int) -> None:
        self.session.rollback(length)

    def select(self, path: Sequence[int]) -> None:
        """Nothing: accepted tokens are read in the next pass."""

    def score_ahead(self, tokens: Sequence[int], prefix_length: int, most: int) -> Iterator[Tensor]:
        return self._scored.q_ahead(tokens, prefix_length, most, self.sampling)


class PardBuilder(DraftBuilder[PardConfig]):
    """A checkpoint in PARD's layout, published or of our own recipe, in a folder, on the hub or shipped."""

    def __init__(self, request: DraftRequest[PardConfig]) -> None:
        super().__init__(request)
        draft, key, run = self.draft, request.key, request.run
        source, pinned = source_of(draft)
        require_weights(request, Path(source), f", or {key}.hub=OWNER/NAME of a published checkpoint")
        config = read_config(source, pinned, key)
        if FIELD not in config:
            where = f"{key}.hub" if draft.path is None and draft.hub is not None else f"{key}.path"
            why = f"{CONFIG} has no {FIELD}, the token that stands for those not known yet: it is no PARD checkpoint"
            raise UserError(f"{where}={source}: {why}")
        self.mask = _mask(config, f"{key}: {CONFIG} of {source}")
        self.own_vocabulary = load_tokenizer(draft, key)
        if self.own_vocabulary.is_encoder_decoder:
            raise UserError(f"{key}={name_of(draft)}: draft=pard is a decoder-only model; this is an encoder-decoder")
        require_a_pair(run, draft, key, request.vocabulary, self.own_vocabulary)
        require_same_vocabulary(request.vocabulary, self.own_vocabulary, name_of(run.target), name_of(draft), key)

    def load(self, target: EagerModel, say: Say) -> Draft:
        request = self.request
        wanted = ModelRequest(self.draft, request.key, self.own_vocabulary, request.run, request.device)
        model = request.loader.load(wanted, say)
        model.require_trees(f"{request.key}=pard", "use another draft")  # by which it is scored
        self.models.append(model)
        own = processed(model, request.run.sampling, request.vocabulary)
        return PardDraft(own, self.mask, request.device)


def _mask(config: Mapping[str, Any], said: str) -> int:
    """The mask token. Raises UserError, which begins with `said`, for one that the model lacks, or another kind."""
    if config.get("pard2") or config.get("spd_type", "pard") != "pard":
        raise UserError(f"{said}: spd_type={config.get('spd_type', 'pard2')}: only pard is supported")
    mask, rows = config[FIELD], config.get("vocab_size")
    if type(mask) is not int or not 0 <= mask < (rows if isinstance(rows, int) else mask + 1):
        raise UserError(f"{said}: {FIELD}={mask}: must be a token of the model, below its vocab_size={rows}")
    return mask
