"""The least time of a step, from its captured graph: kernels that it launches and bytes that it reads."""

from specbench.models import Model, Prompt
from specbench.models.graph.budget import budget
from specbench.models.static import StaticModel

LENGTH = 64  # tokens of the completion that the step follows


def bound(
    model: Model, prompt: Prompt, gb_per_s: float, launch_us: float
) -> tuple[float | None, str, dict[str, float]]:
    """Milliseconds of a step over one token after LENGTH tokens, a note on what they are made of, and its numbers.

    It reads its weights and the whole of its caches at `gb_per_s`, and starts each kernel in `launch_us`. None where
    the engine runs no graph of kernels.
    """
    counted = None
    if isinstance(model, StaticModel):
        step = model.program.one
        # A CUDA graph computes masks and position biases itself; elsewhere they are cached.
        counted = budget([step.of_source, step.of_layout, step.run] if model.engine == "cudagraph" else [step.run])
    if counted is None or not isinstance(model, StaticModel):
        return None, "not counted: this engine runs no graph of kernels", {}
    slots = {"self": model.capacity(LENGTH), "cross": model.source_slots(len(prompt.source))}
    shapes = model.program.shapes
    numbers = sum(heads * channels * slots[kind] for kind, each in shapes.items() for heads, channels in each)
    cache_bytes = numbers * model.program.cache_dtype.itemsize
    read = counted.weight_bytes + cache_bytes
    note = f"{counted.kernels} kernels at {launch_us:g} us, {read / 1e6:.1f} MB at {gb_per_s:.0f} GB/s"
    more = {"kernels": counted.kernels, "weight_bytes": counted.weight_bytes, "cache_bytes": cache_bytes}
    seconds = counted.seconds(gb_per_s * 1e9, launch_us / 1e6, cache_bytes)
    return 1000 * seconds, note, {name: float(number) for name, number in more.items()}
