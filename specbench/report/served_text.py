"""A measured server in words: the answer first, then its numbers."""

from rich.markup import escape

from specbench.analysis.columns import milliseconds
from specbench.formatting import NONE, interval_of, number
from specbench.nouns import with_noun
from specbench.records.run_record import Row
from specbench.records.served import ServedSummary

NOT_KNOWN = "not known: the server counts no passes; gamma=N gives their number"
ALPHA = {
    "maximum likelihood": "acceptance probability: accepted of all verified draft tokens",
    "moments": "acceptance probability, from the mean accepted tokens of a pass (Eq. 1)",
}


def answer(s: ServedSummary) -> str:
    """Speedup and verdict in a line, as markup of rich."""
    verdict = escape(s["verdict"]) if s["verified"] else f"[bold]{escape(marked(s))}[/bold]"
    return f"[bold]{_speed(s)}[/bold], {verdict}"


def marked(s: ServedSummary) -> str:
    """The verdict, and that it does not verify the speedup."""
    if s["verified"] or s["verdict"] == "not verified" or not s["lossless"]:
        return s["verdict"]
    return f"not verified ({s['verdict']})"


def _speed(s: ServedSummary) -> str:
    if s["speedup_measured"] is not None:
        return f"speedup {interval_of(dict(s), 'speedup_measured', 'speedup')}×"
    return "no speedup: the completions are not the target's" if not s["lossless"] else "no speedup without plain=URL"


def contended(s: ServedSummary) -> str:
    """The remark that this machine did other work, with its signs."""
    return (
        f"CONTENDED: {s.get('disturbed_by')}. Times and speedups are unreliable, and tables leave them out; α and the "
        "completions are valid. Measure again with force=true when nothing else runs"
    )


def headline(s: ServedSummary) -> str:
    """The measured setting, as markup of rich."""
    gamma = "" if s["gamma"] is None else f", γ={s['gamma']}"
    load = (
        f", {s['rate']:g} requests per second"
        if s["rate"] is not None
        else f", {with_noun(s['batch'], 'request')} at once"
    )
    flags = f" ({escape(s['flags'])})" if s["flags"] else ""
    return (
        f"{escape(s['engine'])}{flags}: [bold]{escape(s['target'])}[/bold] with draft "
        f"[bold]{escape(s['draft'])}[/bold] on {escape(s['task'])}: T={s['temperature']:g}{gamma}{load}, "
        f"{with_noun(s['prompts'], 'prompt')}, {s['tokens']} tokens"
    )


def rows(s: ServedSummary) -> list[tuple[str, str, str]]:
    """The table: name, value, and what the value is."""
    both = "without / with the draft"
    per = "a token of each request" if s["streamed"] and s["batch"] == 1 else "a token, all requests together"
    table = [
        ("speedup measured", interval_of(dict(s), "speedup_measured", "speedup"), f"{per}{_first(s)}; {_over(s)}"),
        ("  end to end", interval_of(dict(s), "speedup_end_to_end"), "whole requests, with the prompt"),
        ("verdict", marked(s), s["verdict_reason"]),
    ]
    if s["identical"] is not None:
        table.append(("  identical", f"{100 * s['identical']:.1f}%", "of completions equal those without a draft"))
    table += [
        ("time to first token", _two_times(s["ttft_s_baseline"], s["ttft_s"]), f"ms, {both}"),
        ("  90% below", _two_times(s["ttft_p90_s_baseline"], s["ttft_p90_s"]), f"ms, {both}"),
        ("time per output token", _two_times(s["tpot_s_baseline"], s["tpot_s"]), f"ms, {both}"),
        (
            "tokens per second",
            f"{number(s['tokens_per_second_baseline'], 0)} / {number(s['tokens_per_second'], 0)}",
            f"of the server, {both}",
        ),
    ]
    if s["drafted"] is None:
        return [*table, ("α, τ", NONE, "the server shows no counts: neither /metrics nor in its answers")]
    table += [
        ("α", interval_of(dict(s), "alpha", digits=3), ALPHA.get(s["alpha_method"] or "", NOT_KNOWN)),
        (
            "accepted / drafted",
            number(s["accepted_per_drafted"], 3),
            f"{s['accepted']} of {s['drafted']} tokens, by {s['counted_by']}; {s['rejected']} rejected",
        ),
        ("tokens per pass (τ)", number(s["tokens_per_pass"]), f"mean acceptance length, {s['passes'] or NONE} passes"),
    ]
    if s["acceptance_by_position"]:
        shares = [f"{one['accepted'] / one['reached']:.2f}" for one in s["acceptance_by_position"] if one["reached"]]
        table.append(("  by position", " ".join(shares), "accepted of those reached"))
    if s["speedup_measured"] and s["tokens_per_pass"]:
        cost = s["tokens_per_pass"] / s["speedup_measured"]
        table.append(("a pass costs", f"{cost:.2f}", f"steps without a draft: τ over the speedup{_below(cost)}"))
    if s["late_s"] is not None and s["late_s"] > 0.05:
        table.append(("sent late", f"{milliseconds(s['late_s'])}", "ms at most: this machine could not keep the rate"))
    return table


def _below(cost: float) -> str:
    """What a pass means that takes less time than a step without a draft."""
    if round(cost, 2) >= 1:
        return ""
    return "; below 1: its kernels are faster than a step's, or the servers' settings differ"


def _first(s: ServedSummary) -> str:
    return ", after the first" if s["streamed"] and s["batch"] == 1 else ""


def _over(s: ServedSummary) -> str:
    """The unit over which the interval of a speedup is taken."""
    return f"95% interval over {'prompts' if s['batch'] == 1 and s['rate'] is None else 'blocks of prompts'}"


def _two_times(plain: float | None, drafted: float | None) -> str:
    return " / ".join(NONE if one is None else milliseconds(one) for one in (plain, drafted))


def losses(s: ServedSummary) -> list[Row]:
    """The factors from γ + 1 to the speedup: what rejections cost, and what a pass costs in steps without a draft."""
    tokens, speedup, gamma = s["tokens_per_pass"], s["speedup_measured"], s["gamma"]
    found: list[Row] = []
    if tokens is not None and gamma is not None:
        line = f"rejections: a pass writes {tokens:.2f} of γ + 1 = {gamma + 1} tokens"
        found.append({"step": "rejections", "factor": tokens / (gamma + 1), "line": line})
    if tokens is not None and speedup is not None:
        cost = tokens / speedup
        line = f"cost: a pass takes {cost:.2f} steps without a draft; {tokens:.2f} / {cost:.2f} = {speedup:.2f}"
        found.append({"step": "cost of a pass", "factor": 1 / cost, "line": line})
    plain, drafted = s["ttft_s_baseline"], s["ttft_s"]
    if plain is not None and drafted is not None and s["speedup_end_to_end"] is not None and speedup is not None:
        line = (
            f"first token: {milliseconds(plain)} ms without a draft, {milliseconds(drafted)} ms with it; end to end "
            f"{s['speedup_end_to_end']:.2f}×"
        )
        found.append({"step": "first token", "factor": s["speedup_end_to_end"] / speedup, "line": line})
    if not found:
        found.append({"step": "unknown", "factor": None, "line": "neither its counts nor a server without a draft"})
    line = (
        "drafting and verifying are not seen from outside: specbench run target=NAME draft=NAME measures c and v here"
    )
    return [*found, {"step": "not seen", "factor": None, "line": line}]
