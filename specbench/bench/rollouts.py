"""Whether a draft's steps can be captured as one graph, asked before anything is timed."""

from collections.abc import Sequence

from specbench.drafts import Draft, expect, models_of
from specbench.models import Prompt, get_ready
from specbench.models.eager import EagerModel
from specbench.sampling import Sampling


def why_step_by_step(draft: Draft, prompt: Prompt, gammas: Sequence[int], tokens: int) -> str | None:
    """Why `draft` would draft step by step where its steps of a pass should be one graph; None where it would not.

    Captures what greedy completions of up to `tokens` tokens after `prompt` replay at `gammas`.
    """
    models = [model for model in models_of(draft) if isinstance(model, EagerModel)]
    for gamma in gammas:
        expect(draft, Sampling(), [gamma])
        for model in models:
            get_ready(model, prompt, tokens)
    return next((model.rollout_fell_back for model in models if model.rollout_fell_back), None)
