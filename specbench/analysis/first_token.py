"""Reading prompts: time to first token, prompt tokens per second, and the predicted speedup of whole requests.

With S_p and S_q seconds to read a prompt by the target and the draft, t seconds per step of the target alone, n tokens
of a completion and s the speedup of decoding, the speedup end to end is (S_p + n t) / (S_p + S_q + n t / s): a longer
prompt moves it to S_p / (S_p + S_q). Pure arithmetic on records.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specbench.analysis.costs import seconds_of
from specbench.records.decoded import Trace
from specbench.records.numbers import OfPrompts, Predicted
from specbench.records.run_record import PromptRecord


class Starts(NamedTuple):
    """Means over the prompts of a run: seconds to read a prompt, and what follows."""

    target_s: float
    draft_s: float | None  # None if a record does not have it
    decode_s: float  # of the target alone
    tokens: float  # of a prompt, that were read or copied

    @staticmethod
    def of(prompts: Sequence[PromptRecord]) -> "Starts":
        """The means of these prompts; in a batch of each prompt's share."""
        alone = [prompt["baseline"] for prompt in prompts]
        of_draft = [prompt["speculative"].draft_start_s for prompt in prompts]
        known = [one for one in of_draft if one is not None]
        return Starts(
            float(np.mean([one.start_s for one in alone])),
            float(np.mean(known)) if len(known) == len(prompts) else None,
            float(np.mean([one.decode_s for one in alone])),
            float(np.mean([tokens_of(prompt) for prompt in prompts])),
        )

    def end_to_end(self, speedup: float | None, longer: float = 1.0) -> float | None:
        """The speedup of whole requests if decoding has this speedup, with prompts `longer` times as long.

        The time to read a prompt is taken to be proportional to its tokens.
        """
        if speedup is None or self.draft_s is None:
            return None
        target_s, draft_s = longer * self.target_s, longer * self.draft_s
        return (target_s + self.decode_s) / (target_s + draft_s + self.decode_s / speedup)


def tokens_of(prompt: PromptRecord) -> int:
    """The tokens of a prompt that are read before decoding: all but the last, which the first step reads."""
    return prompt["prompt_tokens"] - 1


def first_token_columns(prompts: Sequence[PromptRecord], predicted: Predicted, wrong: bool) -> OfPrompts:
    """Times to the first token and of the next ones, prompt tokens read and copied, and end-to-end speedups of a run.

    Measured times of speculative decoding are None if its completions are `wrong`.

    Records that are older than the counts of prompt tokens read all of them: there was nothing that they could copy.
    """
    starts = Starts.of(prompts)
    alone, ours = ([prompt[mode] for prompt in prompts] for mode in ("baseline", "speculative"))
    read = sum(_read(one, prompt) for one, prompt in zip(alone, prompts, strict=True))
    found: OfPrompts = {
        "ttft_s_baseline": _first_token_s(alone),
        "ttft_s": None if wrong else _first_token_s(ours),
        "tpot_s_baseline": _next_token_s(alone),
        "tpot_s": None if wrong else _next_token_s(ours),
        "target_start_s": starts.target_s,
        "draft_start_s": starts.draft_s,
        "prompt_tokens": starts.tokens,
        "prompt_tokens_read": read,
        "prompt_tokens_copied": sum(one.prompt_copied or 0 for one in alone),
        "prompt_tokens_per_s": _rate(read, sum(one.start_s for one in alone)),
    }
    own = [one.draft_prompt_read for one in ours]
    if None not in own:
        of_draft = sum(count or 0 for count in own)
        found["draft_prompt_tokens_read"] = of_draft
        found["draft_prompt_tokens_copied"] = sum(one.draft_prompt_copied or 0 for one in ours)
        found["draft_prompt_tokens_per_s"] = _rate(of_draft, sum(one.draft_start_s for one in ours))
    found["end_to_end_predicted"] = starts.end_to_end(predicted["speedup_predicted"])
    found["end_to_end_calibrated"] = starts.end_to_end(predicted["speedup_calibrated"])
    return found


def _read(trace: Trace, prompt: PromptRecord) -> int:
    """Tokens of the prompt that were read; all of them in records that are older than this."""
    return tokens_of(prompt) if trace.prompt_read is None else trace.prompt_read


def _first_token_s(traces: Sequence[Trace]) -> float:
    """Mean seconds from the prompt to its first token, or tokens: the start, and the first step or pass."""
    return float(np.mean([one.start_s + next(iter(seconds_of(one)), 0.0) for one in traces]))


def _next_token_s(traces: Sequence[Trace]) -> float | None:
    """Seconds a token after the first step or pass, of one row; None if no completion goes on after it."""
    seconds = sum(sum(seconds_of(one)[1:]) for one in traces)
    first = (one.passes[0].emitted if one.passes else 1 for one in traces)
    tokens = sum(len(one.tokens) - emitted for one, emitted in zip(traces, first, strict=True))
    return seconds / tokens if tokens else None


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens and seconds else None
