"""The input of a run's waterfall: sums of each prompt, so that each prompt can be left out in turn."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.acceptance.by_position import levels, reached_and_accepted
from specbench.analysis.first_token import tokens_of
from specbench.analysis.forecast import walk
from specbench.config.drafts import DRAFT_KINDS
from specbench.records.run_record import PromptRecord, RunRecord
from specbench.theory import Roofline

Floats = NDArray[np.float64]
PARTS = ("steps_s", "drafting_s", "verifying_s", "accepting_s")  # sums of times that vary within a prompt


@dataclass(frozen=True)
class Sample:
    """The sums of a record, prompt by prompt, that its waterfall is made from.

    Attributes:
        columns: names to values [N], one value per prompt.
        variances: names to the variances [N] of a value if the steps and passes of its prompt were drawn again.
        gamma: drafted tokens of a full pass; for a tree its levels; None if it changed from pass to pass.
        depth: positions of the longest proposal.
        lengths: the lengths of completions that occur; column `texts of L` counts them.
        falls_with_position: whether acceptance falls with the position.
        ruled: whether the rule has an alpha of its own (`PromptRecord.rule`).
        missing: what the record does not hold, one sentence each.
        roofline: the least times of a run of the target, in milliseconds; None if they are not known.
        experts_read: of a target with experts, see `Counted`.
        recurrent_layers: of the target, see `Limits`.
    """

    columns: dict[str, Floats]
    variances: dict[str, Floats]
    gamma: int | None
    depth: int
    lengths: list[int]
    tree: bool
    falls_with_position: bool
    ruled: bool
    missing: list[str]
    roofline: Roofline | None = None
    experts_read: float | None = None
    recurrent_layers: int = 0

    @property
    def totals(self) -> dict[str, Floats]:
        """The sums over all prompts."""
        return {name: np.asarray(values.sum()) for name, values in self.columns.items()}


def sample(record: RunRecord) -> Sample:
    """The sums of a record's prompts."""
    prompts, summary = record["prompts"], record["summary"]
    passes = [one for prompt in prompts for one in prompt["speculative"].passes]
    tree = any(one.parents is not None for one in passes)
    deepest = max(map(levels, passes), default=0)
    gamma = deepest if tree else summary["gamma"]
    depth = max(gamma or 0, deepest)
    simulated, ruled = bool(summary.get("simulated")), all("rule" in prompt for prompt in prompts)
    kind = DRAFT_KINDS.get(record["config"]["draft"].get("kind", "model"))  # None: of a package that is not installed
    falls_with_position = kind is not None and kind.falls_with_position and not simulated
    plain = not (tree or ruled or falls_with_position or simulated) and summary.get("accept", "exact") == "exact"
    most = record["config"]["max_new_tokens"]
    lengths = sorted({len(prompt["speculative"].tokens) for prompt in prompts})
    rows = [
        _times(prompt)
        | _passes(prompt, depth, most)
        | _agreement(prompt, gamma if plain else None, most)
        | {f"texts of {length}": float(len(prompt["speculative"].tokens) == length) for length in lengths}
        for prompt in prompts
    ]
    parts = [_parts(prompt) for prompt in prompts]
    return Sample(
        {name: np.array([row[name] for row in rows], float) for name in rows[0]},
        {name: np.array([len(one[name]) * float(np.var(one[name])) for one in parts]) for name in PARTS},
        gamma, depth, lengths, tree, falls_with_position, ruled,
        _missing(record, gamma, tree, falls_with_position, ruled),
        Roofline(summary["reading_ms"], summary["multiplying_ms"], summary.get("expert_share", 0.0))
        if "reading_ms" in summary
        else None,
        summary.get("experts_read"),
        summary.get("recurrent_layers", 0),
    )  # fmt: skip


def _missing(record: RunRecord, gamma: int | None, tree: bool, falls_with_position: bool, ruled: bool) -> list[str]:
    """Data that the record lacks; their effect is part of the unexplained factor."""
    summary, without = record["summary"], "the record does not hold"
    rest = "the effect of dependent positions is part of the unexplained factor"
    if summary.get("simulated"):
        return ["simulated: acceptance was drawn at random, and the noise of these draws is the unexplained factor"]
    if gamma is None:
        return [f"{without} γ as a function of position: ends and positions are part of the unexplained factor"]
    if tree:
        return [f"{without} the tree that would be drafted at each token: {rest}"]
    if ruled:
        return [f"{without} the rule's acceptance at each token, only its sums: {rest}"]
    if falls_with_position:
        return [f"{without} the acceptance of later draft tokens at each token: {rest}"]
    if summary.get("accept", "exact") != "exact":
        return [f"{without} q / p at each token: the gain of accept={summary['accept']} remains unexplained"]
    if summary["temperature"] > 0:
        return [
            f"{without} q / p at each token: β replaces it for positions and overestimates by a few percent; that "
            "error and sampling noise are the unexplained factor"
        ]
    return []


def _parts(prompt: PromptRecord) -> dict[str, Sequence[float]]:
    passes = prompt["speculative"].passes
    return {
        "steps_s": prompt["baseline"].steps_s,
        "drafting_s": [one.draft_s for one in passes],
        "verifying_s": [one.verify_s for one in passes],
        "accepting_s": [one.accept_s for one in passes],
    }


def _times(prompt: PromptRecord) -> dict[str, float]:
    """Seconds of both ways, part by part, and the tokens that they gave. `other`: what no part was timed to take."""
    baseline, ours = prompt["baseline"], prompt["speculative"]
    sums = {name: float(sum(values)) for name, values in _parts(prompt).items()}
    return sums | {
        "baseline_other_s": baseline.decode_s - sums["steps_s"],
        "ours_other_s": ours.decode_s - sum(sums[name] for name in PARTS[1:]),
        "baseline_start_s": baseline.start_s,
        "ours_start_s": ours.start_s,
        "prompt_tokens": float(tokens_of(prompt)),
        "baseline_tokens": len(baseline.tokens),
        "ours_tokens": len(ours.tokens),
    }


def _passes(prompt: PromptRecord, depth: int, most: int) -> dict[str, float]:
    """The number of passes, how deep they drafted and could, and how many reached each position and accepted there.

    A token that was not proposed counts as rejected; a position after the end of the completion, or without room, as
    not reached.
    """
    counts, sizes, rooms, done = np.zeros((depth, 2)), np.zeros(depth + 1), np.zeros(depth + 1), 0
    length = len(prompt["speculative"].tokens)
    for one in prompt["speculative"].passes:
        ended = one.emitted <= one.accepted
        counts += reached_and_accepted(one, depth, one.emitted if ended else min(depth, most - done - 1))
        sizes[levels(one)] += 1
        rooms[min(depth, length - done - 1)] += 1
        done += one.emitted
    return (
        {"passes": float(sizes.sum()), "drafted": sum(one.drafted for one in prompt["speculative"].passes)}
        | {f"reached {place}": float(reached) for place, (reached, _) in enumerate(counts, 1)}
        | {f"accepted {place}": float(accepted) for place, (_, accepted) in enumerate(counts, 1)}
        | {f"passes of {drafted}": float(count) for drafted, count in enumerate(sizes)}
        | {f"room for {room}": float(count) for room, count in enumerate(rooms)}
    )


def _agreement(prompt: PromptRecord, gamma: int | None, most: int) -> dict[str, float]:
    """The sums of alpha; and with `gamma` the passes that a walk along the completion with its beta needs.

    At T = 0 that is the count of decoding; at T > 0 beta replaces q / p of the token, which a record does not hold.
    """
    row = {"beta": float(sum(prompt["beta"])), "scored_tokens": float(len(prompt["beta"]))}
    if "rule" in prompt:
        row["rule"] = prompt["rule"]["accept_probability"]
    if gamma is not None:
        row["walked"] = float(walk(prompt["beta"], gamma, most).passes.sum())
    return row
