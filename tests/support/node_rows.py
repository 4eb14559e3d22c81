"""What a draft says of a tree's nodes, beside what it says of their paths as chains."""

from typing import Any

import torch

from specbench.engine.session import Prompt
from specbench.sampling import Sampling


def nodes_have_the_q_of_their_paths(
    draft: Any, prompt: Prompt, text: list[int], sampling: Sampling, atol: float
) -> None:
    """The q of each node of a tree of two levels is that of its path, scored as a chain."""
    tokens, parents = [4, 22, 8, 8], [-1, -1, 0, 1]
    session = draft.start(prompt, sampling)
    session.after_text(text, 3)
    of_nodes = [
        *session.after_nodes(tokens[:2], parents[:2])._q(),
        *session.after_nodes(tokens[2:], parents[2:])._q(),
    ]
    for node, row_V in enumerate(of_nodes):
        path = [tokens[node]] if parents[node] < 0 else [tokens[parents[node]], tokens[node]]
        along = list(draft.start(prompt, sampling).score_ahead([*text, *path, 0], len(text), len(path) + 1))
        assert torch.allclose(row_V, along[len(path)][len(path)], atol=atol)
