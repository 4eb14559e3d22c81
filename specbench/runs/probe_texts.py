"""The target's completions of prompts that are not measured, from which a gamma or a tree is chosen."""

from specbench.config import RunConfig
from specbench.decoding import autoregressive
from specbench.models import Prompt
from specbench.runs.build import Parts
from specbench.runs.measure_prompt import generator_for

TOKENS = 400  # of text to count on, from at least so many prompts, where there are as many
FEWEST_PROMPTS = 8


def own_texts(config: RunConfig, parts: Parts) -> tuple[list[Prompt], list[list[int]]]:
    """Prompts, and the target's completion of each."""
    texts: list[list[int]] = []
    for index, prompt in enumerate(parts.probe_prompts, len(parts.prompts)):
        if len(texts) >= FEWEST_PROMPTS and sum(map(len, texts)) >= TOKENS:
            break
        generator = generator_for(config.seed, index, "baseline", parts.device)
        texts.append(autoregressive(parts.target, prompt, parts.spec, generator).tokens)
    return parts.probe_prompts[: len(texts)], texts
