"""How time grows: with the tokens of one run (gamma + 1), with the length of the completion, with the vocabulary."""

import torch

from specbench.acceptance import accept_exact
from specbench.bench.breakdown import REPEATS, stepping
from specbench.bench.timing import medians
from specbench.models import Model, Prompt
from specbench.sampling import Sampling, standardise

TOKENS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
LENGTHS = (16, 64, 128, 256, 512)
VOCABULARIES = (8_000, 32_000, 128_000)
GAMMA = 4  # where only the vocabulary varies


def over_tokens(model: Model, prompt: Prompt) -> dict[int, float]:
    """Seconds of one run over so many tokens, at the same place of a completion."""
    session = model.start(prompt)
    session.extend([5] * 16)
    timed = medians({str(count): stepping(session, count) for count in TOKENS}, model.now, REPEATS // 2)
    return {int(count): seconds for count, seconds in timed.items()}


def over_lengths(model: Model, prompt: Prompt) -> dict[int, float]:
    """Seconds of one step after so many tokens."""
    session = model.start(prompt)
    found = {}
    for length in LENGTHS:
        if length > session.length and (model.longest is None or length + 1 < model.longest):
            session.extend([5] * (length - session.length))
            found[length] = medians({"step": stepping(session, 1)}, model.now, REPEATS // 2)["step"]
    return found


def over_vocabularies(model: Model, device: torch.device) -> dict[int, float]:
    """Seconds of everything that a sampled pass does with distributions: q and p standardised, a block accepted."""
    generator = torch.Generator(device=device).manual_seed(0)
    sampled = Sampling(temperature=1.0)
    found = {}
    for size in VOCABULARIES:
        logits = torch.randn(2 * GAMMA + 1, size, device=device)

        def judge(logits: torch.Tensor = logits, size: int = size) -> None:
            q_GV = standardise(logits[:GAMMA], sampled, size)
            p_GV = standardise(logits[GAMMA:], sampled, size)
            accept_exact(p_GV, q_GV, [1, 2, 3, 4], generator)

        found[size] = medians({"judge": judge}, model.now, REPEATS // 5)["judge"]
    return found
