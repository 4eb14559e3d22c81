"""Products of rows with fixed weights, for the layers that a draft runs beside its target: torch's, or an engine's own.

Shapes: K heads, R rows, I numbers read, O numbers made.
"""

from typing import Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Products(Protocol):
    """Two forms of a product with weights that do not change."""

    def linear(self, rows: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        """[..., O] of rows [..., I]: as torch's `linear`."""
        ...

    def matmul(self, rows: Tensor, weight: Tensor) -> Tensor:
        """`rows` @ `weight`: [K, R, I] or [R, I] by [K, I, O], [..., I] by [I, O]."""
        ...


class TorchProducts:
    """Torch's own."""

    def linear(self, rows: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        return F.linear(rows, weight_OI, bias_O)

    def matmul(self, rows: Tensor, weight: Tensor) -> Tensor:
        return torch.matmul(rows, weight)


TORCH: Products = TorchProducts()


class WithProducts(nn.Module):
    """A module that computes its products with fixed weights by `products`."""

    products: Products = TORCH


M = TypeVar("M")


def computed_by(products: Products, heads: M) -> M:
    """`heads`, a frozen module, whose products are from now on computed by `products`."""
    assert isinstance(heads, nn.Module)
    for module in heads.modules() if products is not TORCH else ():
        if isinstance(module, WithProducts):
            module.products = products
        if isinstance(module, nn.Linear):
            module.forward = _forward_of(module, products)  # type: ignore[method-assign]
    return heads


def _forward_of(module: nn.Linear, products: Products):  # type: ignore[no-untyped-def]
    return lambda rows: products.linear(rows, module.weight, module.bias)
