"""A network whose linear maps have their weights in few bits (`kernels.levels`)."""

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from specbench.kernels.levels import rounded


@torch.no_grad()
def round_weights(network: nn.Module, bits: int) -> None:
    """Round the weights of all linear maps of `network` in place, each once, also a head tied to the embedding."""
    maps = {one.weight.data_ptr(): one for one in network.modules() if isinstance(one, (nn.Linear, Conv1D))}
    for module in maps.values():
        if isinstance(module, Conv1D):  # [K, N]
            module.weight.copy_(rounded(module.weight.T, bits).T)
        else:
            module.weight.copy_(rounded(module.weight, bits))
