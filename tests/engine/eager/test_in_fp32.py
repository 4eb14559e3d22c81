"""Computing in fp32 block by block: the results of a copy in fp32, and the network as it was afterwards."""

import copy

import pytest
import torch

from specbench.engine.eager.model import EagerModel
from specbench.engine.selection import in_fp32
from specbench.engine.session import Prompt
from tests.support.networks import network


def logits(network: object, kind: str) -> torch.Tensor:
    tokens = (7, 11, 3)
    prompt = Prompt(tokens, (0,)) if kind.startswith("t5") else Prompt((), tokens)
    session = EagerModel(network, 40, frozenset()).start(prompt)
    return torch.cat([session.extend([5, 9]), session.extend([4])])


@pytest.mark.parametrize("kind", ["t5", "t5-v1_1", "gpt2", "llama"])
def test_it_is_a_copy_in_fp32(kind: str) -> None:
    short = network(kind, seed=3).to(torch.bfloat16)
    before = copy.deepcopy(short.state_dict())
    wide = copy.deepcopy(short).float()
    with in_fp32(short):
        found = logits(short, kind)
    assert found.dtype == torch.float32
    exact = logits(wide, kind)
    assert (found - exact).abs().max() < 1e-5 * exact.abs().max()
    assert (logits(short, kind).float() - exact).abs().max() > 1e-4 * exact.abs().max()  # short again
    assert all(torch.equal(before[name], values) for name, values in short.state_dict().items())


def test_one_block_is_wide_at_a_time() -> None:
    net = network("t5", seed=3, layers=4).to(torch.bfloat16)
    most = []
    for module in net.modules():
        module.register_forward_hook(
            lambda *_: most.append(sum(p.numel() for p in net.parameters() if p.dtype == torch.float32))
        )
    with in_fp32(net):
        logits(net, "t5")
    block = max(
        sum(p.numel() for p in one.parameters()) for one in [*net.decoder.block, *net.encoder.block, net.shared]
    )
    assert max(most) <= block
