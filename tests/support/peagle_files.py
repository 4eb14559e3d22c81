"""P-EAGLE drafts from files in published layouts, written with random weights."""

from pathlib import Path
from typing import Any

import torch

from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.network_parts import return_states
from specbench.methods.eagle.published import published_eagle
from specbench.methods.peagle.draft import PEagleDraft
from specbench.methods.peagle.network import OURS
from specbench.methods.peagle.published import load_published_peagle
from tests.support import published
from tests.support.networks import network
from tests.support.published import SIZE

TAPS = (2, 3, 4)


def qwen3() -> Any:
    told, state = published.speculators("peagle", layers=1)
    told["transformer_layer_config"] |= {"model_type": "qwen3", "head_dim": 16}
    state |= {f"layers.0.self_attn.{name}_norm.weight": torch.rand(16) + 0.5 for name in "qk"}
    return told, state | published.weights(64, "layers.0", head=16)


def normed(**more: Any) -> Any:
    told, state = published.speculators("peagle", norm_before_residual=True, **more)
    return told, state | {f"fc_norm.{place}.weight": torch.rand(32) + 0.5 for place in range(3)}


# Layout, states after how many layers.
CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "speculators": (published.speculators("peagle", layers=3), TAPS),
    "speculators, qwen3": (qwen3(), TAPS),
    "speculators, norms": (normed(fc_norm=True, eagle_aux_hidden_state_layer_ids=[1, 4, 6]), (1, 4, 6)),
    "EAGLE-3's own": (published.peagle(), TAPS),
}


def read(folder: Path, own: Any) -> tuple[Any, tuple[int, ...]]:
    checkpoint = published_eagle(str(folder), {}, "draft", OURS)
    assert checkpoint is not None and checkpoint.kind == "peagle"
    checkpoint.require_fits(own.config)
    taps = checkpoint.taps(own.config.num_hidden_layers)
    return load_published_peagle(checkpoint, own, taps), taps


def made(case: str, folder: Path, size: int = SIZE, end: int = 1, engine: Any = EagerModel) -> tuple[Any, PEagleDraft]:
    """The target, which hands over what the draft reads, and the draft from files."""
    (told, state), taps = CASES[case]
    published.write(folder, told, state)
    own = network("llama", 4, layers=7)
    peagle, found = read(folder, own)
    assert found == taps
    width = return_states(own, "target", taps)
    target = engine(own, size, frozenset({end}))
    target.state_width, target.tap_width = width * (1 + len(taps)), width * len(taps)
    target.tap_depths, target.states_of_prompt = taps, True
    return target, PEagleDraft(target, peagle, taps)
