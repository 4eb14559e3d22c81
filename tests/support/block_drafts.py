"""DFlash and DSpark drafts from files in published layouts, written with random weights."""

from pathlib import Path
from typing import Any

from specbench.engine.eager.model import EagerModel
from specbench.engine.eager.network_parts import return_states
from specbench.methods.dflash.draft import BlockDraft
from specbench.methods.dflash.published import PublishedBlock, published_block
from specbench.methods.dspark.draft import MarkovDraft
from tests.support import block_checkpoints as checkpoints
from tests.support.networks import network as toy_network

SIZE = 40
KINDS = ("dflash", "dspark")


def network() -> Any:
    return toy_network("llama", 4, layers=3)


def published(folder: Path, kind: str, own: Any) -> PublishedBlock:
    return published_block(str(folder), {}, "draft", kind, own.config)


def made(
    folder: Path, kind: str, size: int = SIZE, end: int = 1, confidence: float | None = None, engine: Any = EagerModel
) -> tuple[EagerModel, BlockDraft]:
    """A target, which hands over its states, and the draft of random weights in the published layout."""
    own = network()
    checkpoints.write(folder, checkpoints.config(kind), checkpoints.state(kind, own))
    found = published(folder, kind, own)
    width = return_states(own, "target", found.shape.taps)
    target = engine(own, size, frozenset({end}))
    taps = len(found.shape.taps)
    target.state_width, target.tap_width, target.states_of_prompt = width * (1 + taps), width * taps, True
    drafter = found.load(own)
    if kind == "dflash":
        return target, BlockDraft(target, drafter, found.shape.taps)
    draft = MarkovDraft(target, drafter, found.shape.taps)
    draft.confidence = confidence
    return target, draft
