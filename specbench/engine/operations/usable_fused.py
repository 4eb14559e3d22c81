"""The fused kernels that a device may use, since they compute there what torch's operations compute.

Each is run before its first use on random numbers, in bfloat16 and float32. One that fails or differs leaves its
operations to torch, and a warning names it.
"""

import importlib.util
import warnings
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from specbench.engine.operations import fused, kernels
from specbench.errors import first_line
from specbench.sampling import Sampling, drawn, standardise

ALL = frozenset(
    {
        "add_norm", "norm_linear", "linear_rows", "gated", "write_pair", "write_attend", "attend_one", "rotated",
        "head_argmax", "head_drawn",
    }
)  # fmt: skip
CLOSE = {torch.bfloat16: 0.02, torch.float32: 1e-5}  # the largest difference, absolute and of a number
NO_TRITON, NO_GPU = "Triton is missing", "no CUDA device"
NOT_TRIED = frozenset({NO_TRITON, NO_GPU})


def available(device: torch.device) -> bool:
    """Whether all fused kernels run on `device` and agree with torch there."""
    return agreeing(device) == ALL


@lru_cache
def agreeing(device: torch.device) -> frozenset[str]:
    """The fused kernels that run on `device` and agree with torch there, by name. Warns once of those that do not."""
    left_out = differences(device)
    if left_out and not set(left_out.values()) <= NOT_TRIED:
        warnings.warn(f"kernels left to torch's operations on {device}: {_named(left_out)}", stacklevel=2)
    return ALL - left_out.keys()


@lru_cache
def differences(device: torch.device) -> dict[str, str]:
    """The kernels that fail on `device` or differ from torch there, and how."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return dict.fromkeys(ALL, NO_GPU)
    if not has_triton():
        return dict.fromkeys(ALL, NO_TRITON)
    return {name: found for name in sorted(ALL) if (found := _difference(name, device)) is not None}


def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def in_words(device: torch.device, used: frozenset[str]) -> str:
    """The kernels that are `used` on `device`, and those that are left to torch there, with the reason."""
    left_out = differences(device)
    words = ", ".join(sorted(used)) or "none"
    if reason := next((one for one in NOT_TRIED if one in left_out.values()), None):
        return words if used else f"none ({reason})"
    return f"{words}; left to torch: {_named(left_out)}" if left_out else words


def _named(left_out: dict[str, str]) -> str:
    return ", ".join(f"{name} ({difference})" for name, difference in sorted(left_out.items()))


def _difference(name: str, device: torch.device) -> str | None:
    try:
        with torch.inference_mode():
            for dtype, close in CLOSE.items():
                for ours, theirs in compared(name, device, dtype):
                    if not torch.allclose(ours.double(), theirs.double(), rtol=close, atol=close):
                        largest = float((ours.double() - theirs.double()).abs().max())
                        return f"differs by {largest:.2g} in {str(dtype).removeprefix('torch.')}"
            if name == "linear_rows" and not _same_for_any_rows(device):
                return "rows depend on how many are computed together"
    except Exception as error:  # no C compiler for Triton, a GPU that it does not know
        return first_line(error)
    return None


def _same_for_any_rows(device: torch.device) -> bool:
    """Whether a row of `linear_rows` is the same to the bit in any number of rows."""
    generator = torch.Generator(device).manual_seed(0)
    x, weight = (torch.randn(*shape, 1100, generator=generator, device=device) for shape in ((1, 8), (80,)))
    whole = fused.linear_rows(x, weight, None, None, None)
    return all(
        torch.equal(fused.linear_rows(x[:, :count], weight, None, None, None), whole[:, :count])
        for count in range(1, fused.MOST_TOKENS)
    )


def compared(name: str, device: torch.device, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Tensors of a fused kernel, each with the tensor of torch's operations on the same random numbers."""
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    if name.startswith("head_"):
        logits_of, token = (random(1, 1, 96), random(1500, 96) / 10, random(1500)), torch.ones(1, device=device)
        return _of_head(name, *logits_of, token.double() * 0.4)
    x, y, weight = random(1, 3, 96), random(1, 3, 96), random(96)
    if name == "add_norm":
        return list(zip(fused.add_norm(x, y, weight, 1e-6), fused.torch_add_norm(x, y, weight, 1e-6), strict=True))
    if name == "norm_linear":
        matrix, bias = random(80, 96) / 10, random(80)
        pairs = []
        for tokens, activation in ((1, None), (3, None), (3, "relu"), (3, "gelu_tanh")):
            whole, normed = fused.torch_add_norm(x[:, :tokens], y[:, :tokens], weight, 1e-6)
            both = fused.norm_linear(x[:, :tokens], y[:, :tokens], weight, 1e-6, matrix, bias, activation)
            mapped = fused.activated(functional.linear(normed, matrix, bias), activation)
            pairs += [(both[0], whole), (both[1], mapped)]
        return pairs
    if name == "linear_rows":
        return _of_rows(random(1, 3, 1100), random(80, 1100) / 30, random(80), random(1, 3, 80))
    left, right = random(1, 3, 192).split([96, 96], -1)
    if name == "gated":
        return [
            (fused.gated(kind, left, right), activation(left) * right) for kind, activation in fused.ACTIVATIONS.items()
        ]
    if name == "rotated":
        heads, angles = left.view(1, 3, 2, 48).transpose(1, 2), random(1, 1, 3, 48)
        cosine, sine, turned = angles.cos(), angles.sin(), torch.cat([-heads[..., 24:], heads[..., :24]], -1)
        return [(fused.rotated(heads, cosine, sine), heads * cosine + turned * sine)]
    keys, values = (states.view(1, 3, 2, 48).transpose(1, 2) for states in (left, right.contiguous()))
    ours = [buffer.clone() for buffer in random(2, 1, 2, 70, 48)]
    theirs = [buffer.clone() for buffer in ours]
    at = torch.tensor([1, 5, 2], device=device)
    if name == "write_pair":
        kernels.write_pair(ours[0], ours[1], at, keys, values)
        kernels.write(theirs[0], at, keys)
        kernels.write(theirs[1], at, values)
        return list(zip(ours, theirs, strict=True))
    query, bias, (cached, mixed) = random(1, 4, 1, 48), random(1, 4, 1, 70), ours
    bias[..., 60:] = -torch.inf
    if name == "attend_one":
        rows = random(3, 4, 1, 48), cached.expand(3, -1, -1, -1), mixed.expand(3, -1, -1, -1)
        of_rows = bias.repeat(3, 1, 1, 1) + random(3, 4, 1, 70)
        return [
            (fused.attend_one(*states, added, 0.2), kernels.attend(*states, added, 0.2))
            for states, added in (((query, cached, mixed), bias), ((query, cached, mixed), None), (rows, of_rows))
        ]
    newest = keys[:, :, :1], values[:, :, :1]
    found = fused.write_attend(query, cached, mixed, at[1:2], *newest, bias, 0.2)
    kernels.write(theirs[0], at[1:2], newest[0])
    kernels.write(theirs[1], at[1:2], newest[1])
    return [(found, kernels.attend(query, theirs[0], theirs[1], bias, 0.2)), *zip(ours, theirs, strict=True)]


def _of_rows(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> list[tuple[Tensor, Tensor]]:
    pairs = []
    for given, activation, added in ((bias, None, None), (None, "relu", residual), (bias, "gelu_tanh", residual)):
        mapped = fused.activated(functional.linear(x, weight, given), activation)
        ours = fused.linear_rows(x, weight, given, activation, added)
        pairs.append((ours, mapped if added is None else added + mapped))
    return pairs


def _of_head(name: str, x: Tensor, weight: Tensor, bias: Tensor, uniform: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Compare the logits of the chosen tokens: of tokens that rounding ties the kernel may choose another."""
    vocabulary = len(weight) - 20
    logits = functional.linear(x, weight, bias)[0, :, :vocabulary].float()
    if name == "head_argmax":
        token = fused.head_argmax(x, weight, bias, vocabulary)
        return [(logits[0].index_select(0, token), logits.max(-1).values)]
    token, row = fused.head_drawn(x, weight, bias, vocabulary, 0.7, uniform)
    return [(row, standardise(logits, Sampling(0.7), vocabulary)), (token, drawn(row, uniform))]
