"""Where the passes of a run went on: in one call of the engine, or in Python after each."""

from collections.abc import Mapping
from typing import Any

from specbench.records.schema import Row

IN_C, IN_PYTHON = "in C", "in Python"


PASSES_RUN = (
    "passes: in C, the engine runs whole passes in one call; in Python, each pass returns to Python, which may take as "
    "long as steps of a small model. A ranking across the two compares loops, not drafts or rules"
)
OF_ONE_MODEL = ("model", "quantised")  # kinds of draft whose tokens a model of their own chooses one by one
BY_ARGMAX = ("block", "match", "onehot", "typical")  # rules that are Algorithm 1 at T = 0


def passes_run(row: Row, config: Mapping[str, Any]) -> str:
    """Where the passes of a record ran (docs/engines.md#captured-steps), from its config: records do not say it.

    `native` runs whole passes in one call for a draft model of its own at a constant gamma, one prompt at a time, by
    Algorithm 1's rule (or any that is the argmax at T = 0), without a tree, a confidence, a window, min-p or processed
    logits. It cannot for a model whose step is not one program of kernels, which a config does not tell.
    """
    draft, sampling = config.get("draft") or {}, config.get("sampling") or {}
    plain = draft.get("kind", "model") in OF_ONE_MODEL and draft.get("confidence") is draft.get("window") is None
    by_argmax = row.get("temperature") == 0 and str(row.get("accept")).partition(" ")[0] in BY_ARGMAX
    by_rule = (row.get("accept", "exact") == "exact" or by_argmax) and sampling.get("min_p") is None
    alone = (row.get("batch") or 1) == 1 and not row.get("tree") and isinstance(row.get("gamma"), int)
    own = not row.get("vocabulary") and not row.get("processing") and not row.get("simulated")
    learns = row.get("learnt_positions") is not None
    whole = row.get("engine") == "native" and plain and by_rule and alone and own and not learns
    return IN_C if whole else IN_PYTHON
