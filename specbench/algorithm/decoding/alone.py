"""Decode one prompt at a time: each read is answered at once, by the session that requests it."""

import torch

from specbench.algorithm.decoding.sequence import Decoding, autoregress, speculate
from specbench.algorithm.decoding.spec import DecodingSpec, Trace
from specbench.algorithm.draft import Draft
from specbench.engine.clock import marking
from specbench.engine.session import Model, Prompt, Read


def autoregressive(target: Model, prompt: Prompt, spec: DecodingSpec, generator: torch.Generator) -> Trace:
    """Standard decoding: one target run a token."""
    return _alone(autoregress(target, prompt, spec, generator), target)


def speculative(target: Model, draft: Draft, prompt: Prompt, spec: DecodingSpec, generator: torch.Generator) -> Trace:
    """Speculative decoding: one target run verifies the tokens that `draft` proposes, by the rule of `spec`.

    A pass never drafts past `max_new_tokens`, and the completion ends at the first end-of-sequence token, also inside
    an accepted block.
    """
    return _alone(speculate(target, draft, prompt, spec, generator), target)


def _alone(decoding: Decoding, target: Model) -> Trace:
    answer, mark = None, marking(target)
    while True:
        try:
            asked = decoding.send(answer)
        except StopIteration as over:
            trace: Trace = over.value
            return trace
        answer = asked[0].extend(asked[1], asked[2]) if type(asked) is Read else mark()
