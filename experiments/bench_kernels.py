"""Times of our kernels on a GPU beside torch's operations that they stand for, in the shapes of small drafts.

    python experiments/bench_kernels.py [--device cuda] [--small] [--late] [--output FILE]

On a GPU a number of calls are one CUDA graph, so that launches from the host are not timed; `--late` keeps kernels from
starting before their predecessor has ended. On a CPU, as in `--small`, both sides are torch's operations.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

CALLS, REPEATS = 20, 9  # of one graph; of the graph


class Shape(NamedTuple):
    """Channels, also of the inner layer, tokens of the vocabulary, and slots of a cache."""

    width: int
    inner: int
    vocabulary: int
    slots: int


SHAPES = {"t5-small": Shape(512, 2048, 32128, 256), "gpt-6m": Shape(256, 1024, 8192, 256)}
SMALL = {"small": Shape(32, 64, 300, 64)}


class Case(NamedTuple):
    """A kernel, by our function and by torch's operations."""

    kernel: str
    what: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]


def cases(shape: Shape, device: Any) -> Iterator[Case]:
    """Each kernel that is new in a step of this shape, over one token and over eight."""
    import torch
    from torch.nn import functional

    from specbench.engine.capture.invariant import attend_in_blocks
    from specbench.engine.operations import fused, kernels
    from specbench.sampling import Sampling, TokenChoice

    def random(*sizes: int) -> Any:
        return torch.randn(*sizes, device=device).to(torch.bfloat16) / sizes[-1] ** 0.5

    up, down = random(shape.inner, shape.width), random(shape.width, shape.inner)
    head = random(shape.vocabulary, shape.width)
    norm, bias = random(shape.width), random(shape.inner)
    for tokens in (1, 8):
        x, wide = random(1, tokens, shape.width), random(1, tokens, shape.inner)

        def mapped(x: Any = x) -> Any:
            whole, normed = fused.torch_add_norm(x, x, norm, 1e-6)
            return whole, functional.linear(normed, up).relu()

        yield Case(
            "norm_linear", f"norm, map, ReLU, {tokens} tokens",
            lambda x=x: fused.norm_linear(x, x, norm, 1e-6, up, None, "relu"), mapped,
        )  # fmt: skip
        yield Case(
            "linear_rows", f"map, bias, GELU, {tokens} tokens",
            lambda x=x: fused.linear_rows(x, up, bias, "gelu_tanh", None),
            lambda x=x: functional.gelu(functional.linear(x, up, bias), approximate="tanh"),
        )  # fmt: skip
        yield Case(
            "linear_rows", f"map of long rows, residual, {tokens} tokens",
            lambda x=x, wide=wide: fused.linear_rows(wide, down, None, None, x),
            lambda x=x, wide=wide: x + functional.linear(wide, down),
        )  # fmt: skip
    row, uniform = random(1, 1, shape.width), torch.full((1,), 0.3, dtype=torch.float64, device=device)
    for name, temperature in (("head_argmax", 0.0), ("head_drawn", 1.0)):
        choice = TokenChoice(Sampling(temperature), shape.vocabulary)
        given = (temperature, uniform) if temperature else ()
        yield Case(
            name, f"head and choice, T = {temperature:g}",
            lambda name=name, given=given: getattr(fused, name)(row, head, None, shape.vocabulary, *given),
            lambda choice=choice, given=given: choice.on_device(functional.linear(row, head)[0], *given[1:] or (None,)),
        )  # fmt: skip
    for rows in (1, 16):
        query = random(rows, 8, 1, 64)
        cached = [random(1, 8, shape.slots, 64).expand(rows, -1, -1, -1) for _ in range(2)]
        yield Case(
            "attend_one", f"attention, {rows} rows over {shape.slots} slots",
            lambda query=query, cached=cached: fused.attend_one(query, *cached, None, 1.0),
            lambda query=query, cached=cached: kernels.attend(query, *cached, None, 1.0),
        )  # fmt: skip
        yield Case(
            "attend_one", f"attention of invariant numerics, {rows} rows over {shape.slots} slots",
            lambda query=query, cached=cached: fused.attend_one(query, *cached, None, 1.0),
            lambda query=query, cached=cached: attend_in_blocks(query, *cached, None, 1.0),
        )  # fmt: skip
    yield from _verdicts(shape, device)


def _verdicts(shape: Shape, device: Any) -> Iterator[Case]:
    """A verdict at T = 1, and penalties before it, whole and as torch runs them one operation after another."""
    import torch

    from specbench.algorithm.acceptance.rules.exact import accept_exact
    from specbench.algorithm.acceptance.verify import VerdictOfLogits
    from specbench.sampling import Sampling
    from specbench.text.processors import Weighing

    rows, size = 6, shape.vocabulary
    logits = torch.randn(rows, size, device=device)
    tokens = torch.arange(rows - 1, device=device)
    numbers = torch.rand(rows - 1, device=device), torch.rand(1, dtype=torch.float64, device=device)
    q = torch.randn(rows - 1, size, device=device).softmax(-1)
    verdict = VerdictOfLogits(accept_exact, Sampling(1.0), size)  # type: ignore[arg-type]
    given = logits, tokens, tokens[:0], *numbers, q
    yield Case("verdict", "verdict at T = 1", _one_launch(lambda: verdict(*given), device), lambda: verdict(*given))
    weighing, marked = Weighing(size, 1.1, 0.1, 0.1), torch.arange(rows, device=device).expand(2, -1)
    counted = logits, marked, torch.zeros(2, size, device=device), torch.zeros(size, device=device)
    yield Case("penalties", "penalties", _one_launch(lambda: weighing(*counted), device), lambda: weighing(*counted))


def _one_launch(work: Callable[[], Any], device: Any) -> Callable[[], Any]:
    """`work` as a captured graph on a GPU, otherwise `work` itself."""
    if device.type != "cuda":
        return work
    from specbench.engine.cuda.replayed import CudaCapture

    return CudaCapture(work).replay


def microseconds(work: Callable[[], Any], device: Any, launched: bool) -> float:
    """The median time of a call; not `launched`: of many calls in one graph."""
    import torch

    if device.type != "cuda":
        return _median(work, lambda: None, 1)
    run, calls = work, 1
    if not launched:
        run, calls = _one_launch(lambda: [work() for _ in range(CALLS)], device), CALLS
    return _median(run, lambda: torch.cuda.synchronize(device), calls)


def _median(run: Callable[[], Any], wait: Callable[[], None], calls: int) -> float:
    times = []
    for _ in range(REPEATS + 2):
        wait()
        began = time.perf_counter()
        run()
        wait()
        times.append(1e6 * (time.perf_counter() - began) / calls)
    return statistics.median(times[2:])


def main() -> int:
    """Print a row a kernel; a kernel that torch's operations stand for here has a note."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="small shapes")
    parser.add_argument("--late", action="store_true", help="no kernel starts before its predecessor has ended")
    parser.add_argument("--output", type=Path, help="a JSON file of the rows")
    asked = parser.parse_args()
    if asked.late:
        os.environ["SPECBENCH_PDL"] = "0"
    import torch

    from specbench.engine.operations import usable_fused

    device, rows = torch.device(asked.device), []
    left_out = usable_fused.differences(device)
    with torch.inference_mode():
        for name, shape in (SMALL if asked.small else SHAPES).items():
            for case in cases(shape, device):
                whole = case.kernel in ("verdict", "penalties")
                reason = left_out.get(case.kernel)
                ours = case.theirs if reason and device.type == "cuda" else case.ours
                row = {"shape": name, "what": case.what, "kernel": case.kernel, "reason": reason,
                       "ours_us": microseconds(ours, device, whole),
                       "theirs_us": microseconds(case.theirs, device, whole)}  # fmt: skip
                rows.append(row)
                note = "" if reason is None else f"  (torch's operations: {reason})"
                print(f"{name}  {case.what:56} {row['ours_us']:8.1f} {row['theirs_us']:8.1f} us{note}", flush=True)
                if asked.output is not None:  # what a part that is stopped has kept
                    asked.output.parent.mkdir(parents=True, exist_ok=True)
                    asked.output.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
