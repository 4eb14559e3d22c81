"""A target and a draft of the native engine, small and with random weights, and what they did."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from specbench.algorithm.acceptance.rules.exact import accept_exact
from specbench.algorithm.draft import Draft
from specbench.engine.native.native_model import NativeModel
from specbench.engine.native.passes import NativePasses
from specbench.engine.session import Prompt
from specbench.records.decoded import Trace
from specbench.sampling import Sampling
from tests.support.decode import autoregressive as decode_alone
from tests.support.decode import speculative as decode_with
from tests.support.networks import network

SOURCE = (5, 9, 12, 30, 1)
ENDS = frozenset(range(1, 40, 7))
KINDS = ("t5", "gpt2")


def models(
    kind: str, ends: frozenset[int] = ENDS, dtype: torch.dtype = torch.float32
) -> tuple[NativeModel, NativeModel]:
    """A target, and a draft that often agrees with it: the target with some noise."""
    own, other = network(kind, seed=5).to(dtype), network(kind, seed=5).to(dtype)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 0.05 * parameter.std() * torch.randn(parameter.shape, generator=noise).to(dtype)
    return NativeModel(own, 40, ends), NativeModel(other, 40, ends)


def start(kind: str) -> Prompt:
    return Prompt(SOURCE, (0,)) if kind == "t5" else Prompt((), SOURCE)


def autoregressive(target: NativeModel, prompt: Prompt, sampling: Sampling, most: int, seed: int = 0) -> Trace:
    generator = torch.Generator().manual_seed(seed)
    return decode_alone(target, prompt, sampling=sampling, max_new_tokens=most, generator=generator)


def speculative(
    target: NativeModel, draft: Draft, prompt: Prompt, sampling: Sampling, most: int, gamma: Any, seed: int = 0,
    rule: Any = accept_exact,
) -> Trace:  # fmt: skip
    return decode_with(
        target, draft, prompt, gamma=gamma, sampling=sampling, max_new_tokens=most, accept=rule,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


def did(trace: Trace) -> list[Any]:
    untimed = dict.fromkeys(("draft_s", "verify_s", "accept_s", "draft_run_s", "verify_run_s", "loop_s"), 0)
    return [trace.tokens, *[replace(one, **untimed) for one in trace.passes]]


def both_ways(decode: Callable[[], Trace], monkeypatch: pytest.MonkeyPatch) -> tuple[Trace, Trace, int]:
    """What `decode` gives with verdicts in calls and step by step, and how many verdicts were calls."""
    calls, verify = [], NativePasses.verify
    with monkeypatch.context() as patched:
        patched.setattr(NativePasses, "verify", lambda *of: calls.append(1) or verify(*of))
        in_calls = decode()
    with monkeypatch.context() as patched:
        patched.setattr(NativeModel, "passes", lambda *_: None)
        return in_calls, decode(), len(calls)
