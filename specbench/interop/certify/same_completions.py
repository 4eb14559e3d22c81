"""Whether two servers write the same for the same prompts at T = 0, and how far apart their tokens are where not."""

from specbench.analysis.proof.departures import first_place
from specbench.analysis.proof.kinds import Agreement
from specbench.engine.session import Prompt
from specbench.interop.certify.outputs import Outputs
from specbench.interop.certify.setup import Setup


def agreement(setup: Setup, drafted: Outputs, plain: Outputs) -> Agreement:
    """The agreement of completions of equal prompts. One that is cut shorter agrees with what goes on."""
    alone = {row.prompt: row.tokens for row in plain.rows}
    pairs = [(row.prompt, row.tokens, alone[row.prompt]) for row in drafted.rows if row.prompt in alone]
    apart = [_apart(setup, *pair) for pair in pairs]
    differing = [one for one in apart if one is not None]
    return Agreement(len(pairs), len(pairs) - len(differing), max(differing, default=0.0))


def _apart(setup: Setup, prompt: Prompt, one: list[int], other: list[int]) -> float | None:
    """The distance in logits between the first two tokens that differ; None if none do."""
    place = first_place(one, other)
    if place == min(len(one), len(other)):
        return None
    session = setup.target.start(prompt)
    logits_V = session.extend([*prompt.prefix, *one[:place]][session.length :])[-1].float()
    return abs(float(logits_V[one[place]] - logits_V[other[place]]))
