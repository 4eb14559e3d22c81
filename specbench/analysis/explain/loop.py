"""The share of the loop around the models in a pass, and the speedup that it would leave on other models.

The time of a forward pass grows with a model; the time of the loop (choosing tokens, the verdict, calls from Python)
does not. So a speedup that the loop decides says little about the draft on a larger target.
"""

from dataclasses import dataclass

from specbench.records.run_record import RunRecord

STEPS_MS = (1.0, 10.0, 100.0)  # of a target: about a hundred million parameters, one billion and ten on one device


@dataclass(frozen=True)
class LoopShare:
    """The loop of a run's passes.

    Attributes:
        ms: milliseconds per pass.
        share: of the time of a pass.
        without: the speedup if it took no time.
        at_step_ms: the speedup with the loop as it is, where a target step takes so many milliseconds and the forward
            passes of draft and target keep their ratio to it.
    """

    ms: float
    share: float
    without: float
    at_step_ms: dict[float, float]


def loop_share(record: RunRecord) -> LoopShare | None:
    """The loop of a record's passes; None if it does not hold the times of forward passes."""
    prompts = record["prompts"]
    passes = [one for prompt in prompts for one in prompt["speculative"].passes]
    steps_s = [step for prompt in prompts for step in prompt["baseline"].steps_s]
    loops_s = [one.loop_s for one in passes if one.loop_s is not None]
    if not passes or not steps_s or len(loops_s) < len(passes):
        return None
    step_s, loop_s = sum(steps_s) / len(steps_s), sum(loops_s) / len(passes)
    pass_s = sum(one.draft_s + one.verify_s + one.accept_s for one in passes) / len(passes)
    runs, tokens = (pass_s - loop_s) / step_s, sum(one.emitted for one in passes) / len(passes)
    return LoopShare(
        1000 * loop_s, loop_s / pass_s, tokens / runs,
        {ms: ms * tokens / (ms * runs + 1000 * loop_s) for ms in STEPS_MS},
    )  # fmt: skip
