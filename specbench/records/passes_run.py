"""Where the passes of a run went on: in one call of the engine, or in Python after each."""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.records.numbers import Loop
from specbench.records.run_record import PromptRecord, Row

IN_C, VERIFIED_IN_C, IN_PYTHON = "in C", "verified in C", "in Python"


PASSES_RUN = (
    "passes: in C, the engine runs whole passes in one call; verified in C, each pass returns to Python to draft; in "
    "Python, each pass returns to Python, which may take as long as steps of a small model. A ranking across them "
    "compares loops, not drafts or rules"
)
GUESSED = "where passes ran is guessed from the config in {} of {} records, which are older than this column"
OF_ONE_MODEL = ("model", "quantised")  # kinds of draft whose tokens a model of their own chooses one by one
BY_ARGMAX = ("block", "match", "onehot", "typical")  # rules that are Algorithm 1 at T = 0


def loop_of(prompts: Sequence[PromptRecord]) -> Loop:
    """Where the passes of prompts ran, as each trace says; empty for older records."""
    found = list(dict.fromkeys(prompt["speculative"].passes_run for prompt in prompts))
    return {"passes_run": ", ".join(one for one in found if one is not None)} if found and None not in found else {}


def passes_run(row: Row, config: Mapping[str, Any]) -> str:
    """Where a record's passes ran (docs/internals.md#how-a-step-is-captured): as it says, or guessed if it is older."""
    said = row.get("passes_run")
    return said if isinstance(said, str) else _guess(row, config)


def _guess(row: Row, config: Mapping[str, Any]) -> str:
    """Where the passes of an older record ran, by its config.

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
