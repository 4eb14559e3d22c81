"""Our batched baseline against `transformers.generate` of the same batch, with encoder and prefill."""

import torch

from specbench.bench.hf_baseline import generate_many
from specbench.bench.timing import Decoder
from specbench.decoding import DecodingSpec, autoregress, together
from specbench.models import Batch, Model, Prompt
from specbench.sampling import Sampling


def groups_of(prompts: list[Prompt], rows: int) -> list[list[Prompt]]:
    """`prompts` in groups of `rows`; the first prompts fill up the last group."""
    count = -(-len(prompts) // rows)
    filled = [prompts[index % len(prompts)] for index in range(count * rows)]
    return [filled[start : start + rows] for start in range(0, len(filled), rows)]


def ways(
    target: Model, network: object, groups: list[list[Prompt]], rows: int, max_new_tokens: int
) -> dict[str, Decoder]:
    """How a group of this number is decoded: (seconds, the tokens of its completions one after another)."""
    batch, spec = Batch.of(target, rows), DecodingSpec.algorithm_1(Sampling(), max_new_tokens)

    def ours(index: int) -> tuple[float, list[int]]:
        began = target.now()
        traces = together(
            (autoregress(batch, prompt, spec, torch.Generator(batch.device)) for prompt in groups[index]), rows, batch
        )
        return target.now() - began, [token for trace in traces for token in trace.tokens]

    def theirs(index: int) -> tuple[float, list[int]]:
        began = target.now()
        texts = generate_many(network, groups[index], max_new_tokens, target.eos_ids)
        return target.now() - began, [token for text in texts for token in text]

    return {"ours": ours, "theirs": theirs}
