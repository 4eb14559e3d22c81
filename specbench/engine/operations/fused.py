"""Several small operations of a step as one kernel, on a GPU.

A step over a few tokens of a small model is bound by its launches. The kernels are written in Triton, which comes with
torch for CUDA. Each is compared with torch before it is used (`usable_fused`): without Triton nothing is fused,
and a kernel that fails or disagrees leaves its operations to torch.

Each function computes what the operations that it stands for compute, in torch if tensors are not on a GPU. Sums
within a row are in fp32, and no row depends on another.

Shapes: B rows, L new tokens, E channels.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from specbench.engine.operations import kernels
from specbench.sampling import Sampling, argmax, drawn, standardise

MOST_TOKENS = 8  # of a step whose linear maps are kernels of ours
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


def add_norm(x_BLE: Tensor, y_BLE: Tensor, weight_E: Tensor, epsilon: float | None) -> tuple[Tensor, Tensor]:
    """x + y, and its RMS norm."""
    if x_BLE.is_cuda:
        from specbench.engine.operations import triton as triton_kernels

        return triton_kernels.add_norm(x_BLE, y_BLE, weight_E, epsilon)
    return torch_add_norm(x_BLE, y_BLE, weight_E, epsilon)


def torch_add_norm(x_BLE: Tensor, y_BLE: Tensor, weight_E: Tensor, epsilon: float | None) -> tuple[Tensor, Tensor]:
    """`add_norm` by torch's operations."""
    whole_BLE = torch.add(x_BLE, y_BLE)
    return whole_BLE, torch.rms_norm(whole_BLE, weight_E.shape, weight_E, epsilon)


def norm_linear(
    x_1LE: Tensor,
    y_1LE: Tensor,
    norm_E: Tensor,
    epsilon: float | None,
    weight_NE: Tensor,
    bias_N: Tensor | None,
    activation: str | None = None,
) -> tuple[Tensor, Tensor]:
    """x + y of tokens of a row, and a linear map [1, L, N] of its RMS norm, with its activation if it has one.

    Of up to MOST_TOKENS tokens it is one kernel.
    """
    if x_1LE.is_cuda and x_1LE.shape[1] <= MOST_TOKENS:
        from specbench.engine.operations import triton as triton_kernels

        return triton_kernels.norm_linear(x_1LE, y_1LE, norm_E, epsilon, weight_NE, bias_N, activation)
    whole_1LE, normed_1LE = add_norm(x_1LE, y_1LE, norm_E, epsilon)
    return whole_1LE, activated(functional.linear(normed_1LE, weight_NE, bias_N), activation)


def activated(x: Tensor, activation: str | None) -> Tensor:
    """`activation`, one of ACTIVATIONS, of `x`; None: `x` itself."""
    return x if activation is None else ACTIVATIONS[activation](x)


def linear_rows(
    x_1LE: Tensor, weight_NE: Tensor, bias_N: Tensor | None, activation: str | None, residual_1LN: Tensor | None
) -> Tensor:
    """A linear map [1, L, N] of tokens of a row, its activation, and the sum of `residual_1LN` and that.

    Of up to MOST_TOKENS tokens it is one kernel, whose sums over channels are the same for any number of tokens.
    """
    if x_1LE.is_cuda and x_1LE.shape[1] <= MOST_TOKENS:
        from specbench.engine.operations import triton_products

        return triton_products.linear_rows(x_1LE, weight_NE, bias_N, activation, residual_1LN)
    made_1LN = activated(functional.linear(x_1LE, weight_NE, bias_N), activation)
    return made_1LN if residual_1LN is None else residual_1LN + made_1LN


def head_argmax(x_11E: Tensor, weight_VE: Tensor, bias_V: Tensor | None, vocabulary: int) -> Tensor:
    """The token [1] with the highest logit among the first `vocabulary`: `sampling.argmax` of a linear map."""
    if x_11E.is_cuda:
        from specbench.engine.operations import triton_products

        return triton_products.head_argmax(x_11E, weight_VE, bias_V, vocabulary)
    return argmax(functional.linear(x_11E, weight_VE, bias_V)[0], vocabulary)


def head_drawn(
    x_11E: Tensor,
    weight_VE: Tensor,
    bias_V: Tensor | None,
    vocabulary: int,
    temperature: float,
    uniform_1: Tensor,
) -> tuple[Tensor, Tensor]:
    """A token [1] and the row [1, V] that it was drawn from: `sampling.TokenChoice.on_device` of a linear map."""
    if x_11E.is_cuda:
        from specbench.engine.operations import triton_products

        return triton_products.head_drawn(x_11E, weight_VE, bias_V, vocabulary, temperature, uniform_1)
    row_1V = standardise(functional.linear(x_11E, weight_VE, bias_V)[0], Sampling(temperature), vocabulary)
    return drawn(row_1V, uniform_1), row_1V


def gated(activation: str, x_BLE: Tensor, gate_BLE: Tensor) -> Tensor:
    """activation(x) times the gate."""
    if x_BLE.is_cuda:
        from specbench.engine.operations import triton as triton_kernels

        return triton_kernels.gated(activation, x_BLE, gate_BLE)
    return ACTIVATIONS[activation](x_BLE) * gate_BLE


def write_attend(
    query_1H1D: Tensor,
    key_buffer_1KCD: Tensor,
    value_buffer_1KCD: Tensor,
    at_1: Tensor,
    keys_1K1D: Tensor,
    values_1K1D: Tensor,
    bias: Tensor | None,
    scale: float,
) -> Tensor:
    """The keys and values of one token written into their buffers, and its attention to all slots."""
    if query_1H1D.is_cuda:
        from specbench.engine.operations import triton as triton_kernels

        return triton_kernels.write_attend(
            query_1H1D, key_buffer_1KCD, value_buffer_1KCD, at_1, keys_1K1D, values_1K1D, bias, scale
        )
    kernels.write_pair(key_buffer_1KCD, value_buffer_1KCD, at_1, keys_1K1D, values_1K1D)
    return kernels.attend(query_1H1D, key_buffer_1KCD, value_buffer_1KCD, bias, scale)


def attend_one(query_BH1D: Tensor, key_BKCD: Tensor, value_BKCD: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """The attention of one token of each row to slots that hold all that it sees."""
    if query_BH1D.is_cuda:
        from specbench.engine.operations import triton as triton_kernels

        return triton_kernels.attend_one(query_BH1D, key_BKCD, value_BKCD, bias, scale)
    return kernels.attend(query_BH1D, key_BKCD, value_BKCD, bias, scale)


def rotated(x_1HLD: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions: x cos + (-x's second half, x's first half) sin."""
    if x_1HLD.is_cuda:
        from specbench.engine.operations import triton as triton_kernels

        return triton_kernels.rotated(x_1HLD, cosine, sine)
    first, second = x_1HLD.chunk(2, -1)
    return x_1HLD * cosine + torch.cat([-second, first], -1) * sine
