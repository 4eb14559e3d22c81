"""Verdicts in one C call on drafts that use the target's states, or a model of their own: the same as step by step."""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.algorithm.draft import Draft
from specbench.algorithm.gamma import Adaptive
from specbench.engine.native.native_model import NativeModel
from specbench.engine.native.passes import NativePasses
from specbench.engine.session import Prompt
from specbench.kernels import is_available
from specbench.methods.cascade.draft import CascadeDraft
from specbench.methods.lookahead.draft import LookaheadDraft
from specbench.methods.lookup.draft import LookupDraft
from specbench.methods.model.draft import ModelDraft
from specbench.methods.router.config import RouterConfig
from specbench.methods.router.draft import RouterDraft
from specbench.methods.several.draft import HorizontalDraft
from specbench.records.passes_run import IN_PYTHON, VERIFIED_IN_C
from specbench.sampling import Sampling
from tests.support import block_drafts, blockwise_heads, eagle_layer, later_heads, mtp_checkpoints, peagle_files
from tests.support.native_pairs import KINDS, both_ways, did, models, speculative, start

pytestmark = [
    pytest.mark.skipif(not is_available(), reason="no C compiler"),
    pytest.mark.usefixtures("captured_once"),
]

CPU = torch.device("cpu")
ON_STATES: dict[str, Callable[[Path], tuple[NativeModel, Draft]]] = {
    "medusa": lambda _: later_heads.made("medusa", "gpt2", NativeModel),
    "hydra": lambda _: later_heads.made("hydra", "t5", NativeModel),
    "blockwise": lambda _: blockwise_heads.made("gpt2", NativeModel),
    "eagle": lambda _: eagle_layer.made("t5", (), NativeModel),
    "eagle3": lambda _: eagle_layer.made("gpt2", eagle_layer.TAPS, NativeModel),
    "mtp": lambda _: mtp_checkpoints.started(NativeModel, 40, 1),
    "peagle": lambda folder: peagle_files.made(next(iter(peagle_files.CASES)), folder, engine=NativeModel),
    "dflash": lambda folder: block_drafts.made(folder, "dflash", engine=NativeModel),
    "dspark": lambda folder: block_drafts.made(folder, "dspark", engine=NativeModel),
}


@pytest.mark.parametrize("name", ON_STATES)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(4.0)])
def test_drafts_that_read_the_targets_states_are_verified_in_one_call(
    name: str, sampling: Sampling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as step by step: its session holds the states of all that the call read."""
    target, draft = ON_STATES[name](tmp_path)
    prompt = start("t5" if target.program.encode is not None else "gpt2")
    verified, accepted = verified_alike(target, draft, prompt, sampling, monkeypatch)
    assert verified > 50 and (accepted > 5 or sampling.temperature == 0)  # random weights seldom agree there


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(4.0), Sampling(0.5)])
def test_a_cascades_middle_model_verifies_in_one_call(
    kind: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a pass in which all of its own tokens were accepted, of which it has not read two."""
    target, middle = models(kind, frozenset({39}))
    read, verify = set(), NativePasses.verify

    def noting(of: NativePasses, tokens: list[int], *more: Any) -> Any:
        read.add(len(tokens) - of._target.length)
        return verify(of, tokens, *more)

    monkeypatch.setattr(NativePasses, "verify", noting)
    for inner in (LookupDraft(40, CPU, 3), ModelDraft(target, 40)):
        draft = CascadeDraft(middle, inner, 2, 40)
        verified, accepted = verified_alike(target, draft, start(kind), sampling, monkeypatch)
        assert verified > 100 and accepted > 20
    assert read == {1, 2}


BESIDE: dict[str, Callable[[Draft, NativeModel], Draft]] = {
    "router": lambda one, _: RouterDraft([LookupDraft(40, CPU, 3), one], RouterConfig(least_match=1)),
    "horizontal": lambda one, target: HorizontalDraft([one, LookupDraft(40, CPU, 3)], [1], 40, target.eos_ids, CPU),
}


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(4.0)])
def test_what_is_verified_in_calls_may_be_a_part(
    beside: str, sampling: Sampling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another draft, after whose proposals a cascade's middle model has more to read than a call verifies after."""
    target, middle = models("gpt2", frozenset({39}))
    inside = CascadeDraft(middle, CascadeDraft(target, LookupDraft(40, CPU, 3), 2, 40), 2, 40)
    for part in (CascadeDraft(middle, LookupDraft(40, CPU, 3), 1, 40), inside):
        verified, accepted = verified_alike(target, BESIDE[beside](part, target), start("gpt2"), sampling, monkeypatch)
        assert verified > 50 and accepted > 10
    on_states, heads = ON_STATES["medusa"](tmp_path)
    assert verified_alike(on_states, BESIDE[beside](heads, on_states), start("gpt2"), sampling, monkeypatch)[0] > 50


def verified_alike(
    target: NativeModel, draft: Draft, prompt: Prompt, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, int]:
    """How many verdicts were calls, and how many tokens were accepted, if all is as it is step by step."""
    verified = accepted = 0
    for gamma, seed in itertools.product((1, 3, Adaptive(0.5, {1: 1.0, 3: 1.2, 4: 1.5})), range(3)):
        decode = partial(speculative, target, draft, prompt, sampling, 60, gamma, seed)
        in_calls, step_by_step, calls = both_ways(decode, monkeypatch)
        assert did(in_calls) == did(step_by_step), (gamma, seed)
        assert in_calls.passes_run == VERIFIED_IN_C
        verified, accepted = verified + calls, accepted + sum(one.accepted for one in in_calls.passes)
    return verified, accepted


def test_passes_that_no_call_can_verify_are_not_said_to_be() -> None:
    """Of a proposal with more than a chain: the target reads further tokens beside it."""
    target, _ = models("gpt2", frozenset({39}))
    trace = speculative(target, LookaheadDraft(target, 3, 3, 3, CPU), start("gpt2"), Sampling(), 40, 3)
    assert trace.passes_run == IN_PYTHON and len(trace.passes) > 5
