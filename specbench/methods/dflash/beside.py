"""A block drafter's layers as a network beside the target, and how its captured steps are compared with it."""

from dataclasses import asdict

import torch
from torch import Tensor

from specbench.engine.beside.declared import Beside, EntrySession, StepOf
from specbench.engine.layout import together
from specbench.methods.dflash.entries import BlockEntries
from specbench.methods.dflash.network import BlockDrafter

PROBED = 5  # tokens of the context


def beside(drafter: BlockDrafter) -> Beside:
    """`drafter`, bound to its target: a step makes keys and values of the context, another runs a whole block."""
    shape = drafter.shape
    return Beside(
        f"{shape.kind}'s layers", drafter, drafter.borrowed, drafter.fc.weight, asdict(shape),
        {
            "context": StepOf(drafter.read, len(shape.taps) * shape.layer.width),
            "block": StepOf(drafter.block, least=2, usual=(shape.block,)),
        },
        shape.layer.caches(shape.layers), sight=together, readable=shape.mask + 1,
    )  # fmt: skip


def probe(drafter: BlockDrafter, session: EntrySession) -> list[Tensor]:
    """Logits [K, V] of two blocks, after several tokens of the context and after one more."""
    noise_LF = torch.randn(PROBED, drafter.fc.weight.shape[1], generator=torch.Generator().manual_seed(0))
    found, entries = list[Tensor](), BlockEntries(drafter, session)
    for part_LF in noise_LF.to(drafter.fc.weight).split([PROBED - 1, 1]):
        entries.read(part_LF)
        found.append(entries.block(drafter.rows // 2, drafter.shape.drafted).logits_LV.float())
    return found
