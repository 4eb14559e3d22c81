"""The cost of a pass of each candidate and gamma in target steps: c, v(gamma) and overhead.

Computed from timed passes (`analysis.costs.probe`). Each round is divided by its own target step, so that a slowdown of
the machine between rounds cancels. A walltime is a sum, so its terms are means and not medians: slow passes (the draft
reads two tokens after full acceptance, or misses its cache) belong to it. What another process or the host interrupts
is left out if that takes long: more than `ODD` times a candidate's longest usual pass, for its passes and for the steps
that they are compared with. With multiples of their own lengths, steps would be free of interruptions that passes keep,
which take 1 to 3% of a run's time.

The first pass of a completion costs more than others (the source's tensors are prepared), and so does a pass that
verifies fewer tokens than those before it, and the first step of the baseline. On completions of ten tokens this is
decisive.

Plain numbers only. An interval resamples rounds (`analysis.forecast.predict`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbench.records.prediction import Cost
from specbench.records.timed_rounds import Key, Round, Timed

ODD = 1.5
FEW = 3  # passes of a kind below which nothing is said of it
KINDS = ("full", "first", "short", "idle")
Times = NDArray[np.float64]  # [N, 3]: drafting, checking, accepting; [N, 1]: steps


@dataclass(frozen=True)
class Prices:
    """All costs, in target steps that do not begin a completion."""

    costs: dict[Key, Cost]
    first_step: float  # the baseline's first step of a completion
    idle: dict[str, float]  # a pass without draft tokens
    short: dict[str, float]  # the fixed cost of a pass that drafted fewer than gamma tokens, in addition to its tokens
    one_cost_per_pass: bool = (
        False  # in a batch all rows have the same cost per pass, however many tokens each row drafts
    )

    def of_passes(self, key: Key) -> NDArray[np.float64]:
        """[2, gamma + 1]: costs of passes that draft 0 ... gamma tokens; first those that begin a completion.

        Between the gammas that were timed, costs are interpolated linearly.
        """
        name, gamma = key
        if self.one_cost_per_pass:
            return np.full((2, gamma + 1), self.costs[key].of_pass(gamma))
        known = sorted(one for named, one in self.costs if named == name and one <= gamma)
        drafted, at = np.arange(gamma + 1), [0, *known]
        bare = self.first_step + self.costs[name, known[0]].overhead
        first = np.interp(drafted, at, [bare, *(self.costs[name, one].first for one in known)])
        other = np.interp(drafted, at, [self.idle[name], *(self.costs[name, one].of_pass(one) for one in known)])
        other[1:gamma] += self.short[name]
        return np.array([first, other])


class Costs:
    """The cost of each (candidate, gamma) with timed full passes, over any choice of the rounds."""

    def __init__(self, rounds: Sequence[Round]) -> None:
        self.rounds = [one for one in rounds if one.steps_s]
        self.keys = list(rounds[0].by_key)
        self._made = [_Seen(one) for one in self.rounds]

    def prices(self, rounds: Iterable[int] | None = None) -> Prices:
        """Prices over `rounds` (their numbers, some perhaps more than once), or over all."""
        picked = self._made if rounds is None else [self._made[number] for number in rounds]
        if not sum(len(one.steps) for one in picked):
            return Prices({}, 1.0, {}, {})
        costs: dict[Key, Cost] = {}
        units = {name: self._unit(picked, name) for name in dict.fromkeys(name for name, _ in self.keys)}
        longest, step = max(units.values())
        begun = _mean((one.first_steps for one in picked), longest)
        for key in self.keys:
            odd, unit = units[key[0]]
            full = _mean((one.passes[key]["full"] for one in picked), odd)
            first = _mean((one.passes[key]["first"] for one in picked), odd)
            usual = first if full is None else full  # short completions have no room for two
            if usual is not None:
                drafting, checking, accepting = (usual / unit).tolist()
                costs[key] = Cost(
                    drafting / key[1], checking, accepting,
                    passes=sum(len(one.passes[key][kind]) for one in picked for kind in ("full", "first")),
                    first=float(((usual if first is None else first) / unit).sum()),
                )  # fmt: skip
        names = list(dict.fromkeys(name for name, _ in costs))
        first_step = 1.0 if begun is None else float(begun[0] / step)
        idle = {name: 1 + cost.overhead for (name, _), cost in costs.items()}
        keys_of = {name: [key for key in costs if key[0] == name] for name in names}
        for name, keys in keys_of.items():
            odd, unit = units[name]
            nothing = _mean((one.passes[key]["idle"] for one in picked for key in keys), odd, FEW)
            if nothing is not None:
                idle[name] = float((nothing / unit).sum())
        short = dict.fromkeys(names, 0.0)
        bare = Prices(costs, first_step, idle, short.copy())
        for name, keys in keys_of.items():
            odd, unit = units[name]
            more = [
                one.passes[key]["short"].sum(-1) / unit - bare.of_passes(key)[1][one.drafted[key]]
                for one in picked
                for key in keys
            ]
            short[name] = _middle(np.concatenate(more), odd)
        return Prices(costs, first_step, idle, short)

    def _unit(self, picked: Sequence["_Seen"], name: str) -> tuple[float, float]:
        """By how much a pass of a candidate may be longer than its median, and a target step under the same bound.

        In steps of their own rounds: `ODD` of the candidate's longest usual pass.
        """
        usual = [
            np.concatenate([one.passes[key][kind].sum(-1) for one in picked])
            for key in self.keys
            for kind in ("full", "first")
            if key[0] == name
        ]
        odd = ODD * max((float(np.median(times)) for times in usual if len(times)), default=1.0)
        step = _mean((one.steps for one in picked), odd)
        assert step is not None
        return odd, float(step[0])

    def stops(self, name: str) -> float | None:
        """The probability, at each token drafted from a rejected token on, that the draft ended its proposal there.

        None if no proposal was ever shorter than asked for.
        """
        timed = [seen for one in self.rounds for key, many in one.by_key.items() if key[0] == name for seen in many]
        if not any(0 < seen.drafted < seen.asked for seen in timed):
            return None
        rejecting = [seen for seen in timed if seen.accepted < seen.drafted]
        tokens = sum(seen.drafted - seen.accepted for seen in rejecting)
        return sum(seen.drafted < seen.asked for seen in rejecting) / tokens if tokens else 0.0


class _Seen:
    """A round over its own median step, by the kind of its passes."""

    def __init__(self, one: Round) -> None:
        step_s = float(np.median(one.steps_s))
        self.steps: Times = np.array(one.steps_s)[:, None] / step_s
        self.first_steps: Times = np.array(one.first_steps_s)[:, None] / step_s
        self.passes: dict[Key, dict[str, Times]] = {}
        self.drafted: dict[Key, NDArray[np.int64]] = {}  # of the short passes
        for key, many in one.by_key.items():
            kinds = [_kind(seen, key[1]) for seen in many]
            times = np.array([(seen.draft_s, seen.verify_s, seen.accept_s) for seen in many]).reshape(-1, 3) / step_s
            self.passes[key] = {kind: times[[one == kind for one in kinds]] for kind in KINDS}
            self.drafted[key] = np.array(
                [s.drafted for s, kind in zip(many, kinds, strict=True) if kind == "short"], int
            )


def _kind(seen: Timed, gamma: int) -> str:
    if seen.drafted == gamma:
        return "first" if seen.first else "full"
    if seen.first:
        return "other"
    return "short" if seen.drafted else "idle"


def _mean(times: Iterable[Times], odd: float, at_least: int = 1) -> Times | None:
    """The mean [3] of what did not take more than `odd` longer than the median; None of too few."""
    listed = list(times)
    if sum(map(len, listed)) < at_least:
        return None
    seen_N3 = np.concatenate(listed)
    total_N = seen_N3.sum(-1)
    mean: Times = seen_N3[total_N <= np.median(total_N) + odd].mean(0)
    return mean


def _middle(more_N: NDArray[np.float64], odd: float) -> float:
    """The mean without values more than `odd` above the median; 0 for too few values."""
    if len(more_N) < FEW:
        return 0.0
    return float(more_N[more_N <= np.median(more_N) + odd].mean())


def step_seconds(rounds: Sequence[Round]) -> float:
    """The median target step."""
    return float(np.median([step for one in rounds for step in one.steps_s]))
