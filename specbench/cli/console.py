"""What a run looks like on a terminal: progress while it works, a table when it is done."""

from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from specbench.measure.theorems import BY_POSITION, BY_RANK
from specbench.records.schema import Summary
from specbench.stats import FEW_PROMPTS
from specbench.theory import expected_tokens

if TYPE_CHECKING:
    from specbench.run import Result

LOG_LINES = 5  # progress lines of a run where there is no terminal


class Screen:
    """Progress on `stream`, a bar on a terminal and plain lines in a log; and the final table on stdout."""

    def __init__(self, stream: IO[str], doing: str = "decoding", done: str = "decoded {} of {} prompts") -> None:
        self._doing, self._done = doing, done
        self._console = Console(file=stream, highlight=False)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=self._console, transient=True)
        self._task = self._progress.add_task("starting", total=None)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def say(self, text: str) -> None:
        self._progress.update(self._task, description=text)
        if not self._console.is_terminal:
            self.note(text)

    def note(self, text: str) -> None:
        """A line that does not go away, above the bar on a terminal."""
        self._console.print(text, soft_wrap=True, markup=False)

    def advance(self, done: int, total: int) -> None:
        self._progress.update(self._task, description=self._doing, completed=done, total=total)
        if not self._console.is_terminal and (done * LOG_LINES) // total > ((done - 1) * LOG_LINES) // total:
            self._console.print(self._done.format(done, total))

    def line(self, result: "Result") -> None:
        """A finished run among many: one line, and what must not be overlooked. The table of all follows on stdout."""
        summary = result.record["summary"]
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        state = "already there" if result.reused else "written"
        alpha, measured = _number(summary["alpha"], 3), _number(summary["speedup_measured"], 2)
        console.print(f"{result.record['run_id']}: α {alpha}, speedup {measured} ({state})")
        if summary.get("simulated"):
            console.print(simulated(summary))
        elif not summary["lossless"] and not summary.get("lossy"):
            console.print(remarks(summary)[0])
        if summary.get("disturbed"):
            console.print(disturbed(summary))

    def show(self, result: "Result") -> None:
        """The table of a finished run."""
        console = Console(highlight=False, soft_wrap=True)
        if not console.is_terminal:
            console.width = 120
        summary = result.record["summary"]
        threads = result.record["environment"]["threads"]
        console.print(
            f"[bold]{summary['target']}[/bold] with draft [bold]{summary['draft']}[/bold] on {summary['task']}: "
            f"{'[bold]SIMULATED[/bold], ' if summary.get('simulated') else ''}"
            f"T={summary['temperature']:g}, {_gamma(summary)}, {_rule(summary)}{summary['prompts']} prompts, "
            f"{summary['tokens']} tokens, {summary['dtype']} on {summary['device']}"
            + (f" ({threads} threads)" if summary["device"] == "cpu" else "")
        )
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold")
        table.add_column(justify="right")
        table.add_column(style="dim")
        for row in _rows(summary):
            table.add_row(*row)
        console.print(table)
        for line in remarks(summary):
            console.print(line)
        state = "already there; force=true runs it again" if result.reused else "written"
        console.print(f"record: {result.file} ({state})")


def _gamma(s: Summary) -> str:
    if s.get("tree"):
        return f"tree {s['tree']} ({s['nodes_per_pass']:.1f} nodes, {s['depth_per_pass']:.1f} levels a pass)"
    if s["gamma"] is None:
        return f"γ={s.get('gamma_requested')} ({s['drafted_per_pass']:.1f} a pass)"
    return f"γ={s['gamma']}" + (" (auto)" if s.get("gamma_requested") == "auto" else "")


def _rule(s: Summary) -> str:
    if s.get("accept", "exact") == "exact":
        return ""
    return f"[bold]{s['accept']}{' (lossy)' if s['lossy'] else ''}[/bold], "


def _predicted_tokens(s: Summary) -> str:
    predicted, gamma = s["tokens_per_pass_predicted"], s["gamma"]
    if predicted is not None and s["prediction"] == BY_RANK:
        return f"predicted from the acceptance by rank: {predicted:.2f}"
    if predicted is None or gamma is None:
        return "γ follows the text; Eq. 1 has one γ"
    if s["prediction"] == BY_POSITION:
        bound = expected_tokens(s.get("alpha_rule", s["alpha"]), gamma)
        return f"predicted from the acceptance by position: {predicted:.2f}; Eq. 1 has one α: {bound:.2f}"
    return f"Eq. 1 predicts {predicted:.2f}"


def _by_rank(s: Summary) -> list[tuple[str, str, str]]:
    if not s.get("acceptance_by_rank"):
        return []
    first = " ".join(f"{share:.3f}" for share in s["acceptance_by_rank"][:4])
    return [("acceptance by rank", first, "of a node's children: how often the first, second, ... is accepted")]


def _theorem(s: Summary, number: str) -> str:
    if s["prediction"] == BY_RANK:
        return f"Theorem {number} with the tree's tokens and drafting"
    return f"Theorem {number}" + (", from the acceptance by position" if s["prediction"] == BY_POSITION else "")


def _calibration(s: Summary) -> str:
    if s["prediction"] in (BY_POSITION, BY_RANK):
        return "predicted tokens per pass over what these passes cost"
    return "Theorem 3.8 with v + overhead for its 1"


def _alpha(s: Summary) -> tuple[str, str, str]:
    if s.get("simulated"):
        return ("α", _number(s["alpha"], 3), "as given by simulate.alpha, not measured")
    return ("α", _interval(s["alpha"], s["alpha_low"], s["alpha_high"], 3), "acceptance rate, Cor 3.6")


def _rows(s: Summary) -> list[tuple[str, str, str]]:
    rows = [
        _alpha(s),
        *_under_rule(s),
        ("accepted / drafted", _number(s["accepted_per_drafted"], 3), "not α: a rejection ends a pass"),
        ("tokens per pass", _number(s["tokens_per_pass"], 2), _predicted_tokens(s)),
        *_by_rank(s),
        ("c", _number(s["c"], 3), f"draft step / target step; a target step takes {1000 * s['target_step_s']:.2f} ms"),
        ("verify cost v", _number(s["verify_cost"], 3), "T_p(γ+1) / T_p(1); Theorem 3.8 takes it to be 1"),
        ("speedup predicted", _number(s["speedup_predicted"], 2), _theorem(s, "3.8")),
        ("speedup calibrated", _number(s["speedup_calibrated"], 2), _calibration(s)),
        ("speedup measured", _interval(s["speedup_measured"], s["speedup_low"], s["speedup_high"], 2), "decoding"),
        (
            "  end to end",
            _interval(s["speedup_end_to_end"], s["speedup_end_to_end_low"], s["speedup_end_to_end_high"], 2),
            "with encoder and prefill",
        ),
        ("operations", _number(s["operations"], 2) + "×", _predicted_operations(s)),
    ]
    if s["quality_metric"]:
        name = {"bleu": "BLEU", "rouge": "ROUGE-L"}[s["quality_metric"]]
        both = f"{s['quality_baseline']:.1f} / {s['quality_speculative']:.1f}"
        rows.append((name, both, "target alone / speculative" + _quality_difference(s)))
    if s["identical"] is not None:
        rows.append(("identical texts", f"{100 * s['identical']:.1f}%", "the target's own greedy text"))
    return rows + _proof(s)


def _proof(s: Summary) -> list[tuple[str, str, str]]:
    if s.get("proof_z") is None:
        return []
    others = {"draft": s["proof_z_draft"], "second moment": s["proof_z2"], "order": s["proof_z_order"]}
    seen = "".join(f", {name} {z:+.2f}" for name, z in others.items() if z is not None)
    return [
        ("proof z", f"{s['proof_z']:+.2f}", f"p={s['proof_p']:.2g}{seen}; ±4 is the limit"),
        ("  power", _number(s["proof_power"], 3), "total variation a token that z would have shown 9 times in 10"),
    ]


def _predicted_operations(s: Summary) -> str:
    predicted = s["operations_predicted"]
    return "counted" if predicted is None else f"counted; {_theorem(s, '3.11')}: {predicted:.2f}×"


def _quality_difference(s: Summary) -> str:
    if s["identical"] == 1:
        return ""
    if s["lossless"] and s["temperature"] > 0:
        return "; two samples of one distribution"
    low, high = s.get("quality_difference_low"), s.get("quality_difference_high")
    if low is None or high is None:
        return ""
    verdict = "no difference shown" if low <= 0 <= high else "they differ"
    return f"; {verdict}: {s['quality_difference']:+.1f} \\[{low:+.1f}, {high:+.1f}]"


def _under_rule(s: Summary) -> list[tuple[str, str, str]]:
    if not s.get("lossy"):
        return []
    kept = _interval(s["alpha_rule"], s["alpha_rule_low"], s["alpha_rule_high"], 3)
    return [
        ("α under the rule", kept, f"{s['accept']}; what the predictions below are made from"),
        ("total variation", _number(s["total_variation"], 3), "of the next token from the target's, along its text"),
    ]


def remarks(s: Summary) -> list[str]:
    """What the numbers mean, in words, where a reader could be misled."""
    lines = []
    if s.get("simulated"):
        lines.append(simulated(s))
    elif s.get("lossy"):
        lines.append(
            f"LOSSY: accept={s['accept']} lets through what is not the target's own distribution; the speed is that of "
            "other texts"
        )
    elif not s["lossless"] and s.get("proof_tokens"):
        lines.append(_disproof(s))
    elif not s["lossless"]:
        lines.append("NOT LOSSLESS: texts differ by more than rounding, so no speed is given; please report this")
    elif s["identical"] is not None and s["identical"] < 1:
        lines.append(
            f"{100 * (1 - s['identical']):.1f}% of the texts differ after a near tie of the target's two best "
            f"tokens, which {s['dtype']} rounding decides; dtype=float32 gives identical texts"
        )
    if s.get("accept") == "block":
        lines.append("Eq. 1 and Theorem 3.8 are of Algorithm 1; block verification has as many tokens a pass or more")
    if s["speedup_measured"] is not None and s["speedup_measured"] < 1:
        drafting, checking = s["drafting_per_pass"], s["checking_per_pass"]
        most = "drafting" if drafting > checking - 1 else "checking several tokens at once"
        lines.append(
            f"slower than the target alone: {s['tokens_per_pass']:.2f} tokens a pass cost {drafting:.2f} (drafting) + "
            f"{checking:.2f} (checking) + {s['accepting_per_pass']:.2f} (accepting) target steps in the mean; most of "
            f"it is {most}"
        )
    if s.get("disturbed"):
        lines.append(disturbed(s))
    if s.get("prompts_cut"):
        lines.append(
            f"{s['prompts_cut']} of {s['prompts']} prompts hold only a part of their text: task.max_source_tokens"
        )
    if s["prompts"] < FEW_PROMPTS:
        lines.append(f"{s['prompts']} prompts are few: the intervals are rough")
    return lines


def simulated(s: Summary) -> str:
    """That acceptance was by chance, and which of the numbers are real nevertheless."""
    return (
        f"SIMULATED: drafted tokens were accepted by chance at simulate.alpha={s['alpha']:g}. Times are measured; α "
        "was chosen, speedups hold for that α only, and the texts mean nothing"
    )


def disturbed(s: Summary) -> str:
    """That something else had the machine, and what showed it."""
    return (
        f"DISTURBED: {s['disturbed_by']}. c, v and the speedups mean little, and no table takes them; α and the texts "
        "are right. Run it again with force=true when nothing else runs"
    )


def _disproof(s: Summary) -> str:
    """Why sampled texts are not the target's own."""
    if s["proof_outside"]:
        seen = f"{s['proof_outside']} of {s['proof_tokens']} sampled tokens have no probability under the target"
    else:
        z = {
            "z": s["proof_z"],
            "draft": s["proof_z_draft"],
            "second moment": s["proof_z2"],
            "order": s["proof_z_order"],
        }
        worst = max(z, key=lambda name: abs(z[name] or 0.0))
        seen = f"over {s['proof_tokens']} sampled tokens the proof's {worst} is {z[worst]:+.1f}"
    return f"NOT LOSSLESS: {seen}: the text was not drawn from the target, so no speed is given; please report this"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _interval(value: float | None, low: float | None, high: float | None, digits: int) -> str:
    if value is None or low is None or high is None:
        return _number(value, digits)
    return f"{value:.{digits}f} \\[{low:.{digits}f}, {high:.{digits}f}]"
