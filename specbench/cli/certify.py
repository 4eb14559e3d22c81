"""`specbench certify`: test whether a server's completions come from the target."""

from __future__ import annotations

import re
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.cli.formats import aside, print_rows
from specbench.cli.options import to_stderr
from specbench.cli.overrides import read
from specbench.cli.usage import usage
from specbench.compose.hydra_app import launch_one
from specbench.compose.words import parsed
from specbench.config.schema import OLD
from specbench.config.verbs import CertifyConfig, check_certify, require_used_by_certify
from specbench.errors import UserError
from specbench.nouns import with_noun

if TYPE_CHECKING:
    from specbench.analysis.proof.certificate import Certificate
    from specbench.interop.certify import Certified

ABOUT = """
Test whether a server's completions are the target's. At T=0 every token must be the target's best token, up to
rounding; at T>0 (sampling.temperature=) the completions must follow its distribution. A row of
OUTPUTS.jsonl is {"prompt": TEXT or IDS, "tokens": IDS} or {"prompt": ..., "text": TEXT}, with "finish_reason" if known.
Exit code 0: the target's; 1: not the target's; 2: cannot tell (or the command line is wrong). docs/certify.md
"""
NAMES_TARGET = re.compile(r"target(@\w[\w.]*)?=|target\.(path|hub|shipped)=|experiment=")
SHOWN = 10  # departures in the table; JSON has all


def main(argv: list[str]) -> int:
    """Run `specbench certify` with the words `argv`."""
    files, words = _files_and_words(argv)
    line = "OUTPUTS.jsonl target=NAME [key=value ...]"
    command = read(words, CertifyConfig, lambda: usage("certify", ABOUT, CertifyConfig, line=line))
    # A target's usual draft says nothing of the draft that a server used.
    unknown = [] if any(re.match(r"draft(\.kind)?=", word) for word in words) else ["draft=random"]
    task = partial(job, command.form, files, command.overrides)
    return launch_one(task, CertifyConfig, [*command.argv, *unknown], "certify") or 0


def job(form: str, files: list[str], overrides: list[str], config: CertifyConfig) -> int:
    """Test the rows of the file that is named, print the verdict, and return its exit code.

    Raises UserError if there is no such file, `overrides` name no target or a key that is not used, or the rows do not
    fit the target.
    """
    if len(files) != 1:
        given = f"one file of outputs, not {len(files)} ({', '.join(files)})" if files else "name the file of outputs"
        raise UserError(f"certify: {given}: specbench certify OUTPUTS.jsonl target=NAME")
    file = Path(files[0])
    check_certify(config)
    values = {word.key_or_group: word.value() for word in map(parsed, overrides) if word is not None}
    require_used_by_certify(config, values)
    for name, one in (("", file), ("plain=", None if config.plain is None else Path(config.plain))):
        if one is not None and not one.exists():
            raise UserError(f"{name}{one}: there is no file of that name")
    if not any(NAMES_TARGET.match(word) for word in overrides):  # the default of a run is no claim of any server
        raise UserError(f"target: name the model that the server claims to run: certify {file} target=NAME")
    from specbench.interop.certify import certify

    found = certify(config, file, to_stderr)
    document = as_document(found)
    print_rows(form, [{**document, **_counts(found)}], lambda: draw(found), document=document)
    for reason, rows in found.left_out.items():
        print(f"{with_noun(rows, 'row')} left out: {reason}", file=aside(form))
    return _exit_code(found)


def _exit_code(found: Certified) -> int:
    """The certificate's exit code; for wrong completions also if only the ends with a draft are wrong."""
    from specbench.analysis.proof.certificate import EXIT_CODES

    return EXIT_CODES["not the target's"] if found.verdict.is_faulty else found.certificate.exit_code


def as_document(found: Certified) -> dict[str, object]:
    """The verdict and its evidence as plain values, for `--format json`."""
    certificate = found.certificate
    return {
        "verdict": certificate.verdict,
        "kind": found.verdict.kind,
        "exit_code": _exit_code(found),
        "reason": found.verdict.evidence[0],
        "not_covered": certificate.not_covered,
        "evidence": list(found.verdict.evidence),
        "plain": None if found.verdict.plain is None else found.verdict.plain.verdict,
        "draft_tokens": None if found.verdict.counts is None else asdict(found.verdict.counts),
        "covers_drafts": found.verdict.covers_drafts,
        "target": found.target,
        **{name: getattr(found.sampling, name) for name in OLD},
        **({} if found.processing is None else {"processing": found.processing}),
        "dtype": found.dtype,
        "rows": found.rows,
        "rows_left_out": dict(found.left_out),
        "rows_from_text": found.from_text,
        "tokens_after_ends": found.after_end,
        "tokens": certificate.tokens,
        "power": certificate.power,
        "tokens_needed": certificate.needed,
        "tests": certificate.tests,
        "foreign": _foreign(certificate),
        "findings": found.findings,
        "departures": [
            {"row": where, **asdict(one), "is_rounding": one.is_rounding} for where, one in found.departures
        ],
    }


def _foreign(certificate: Certificate) -> dict[str, object] | None:
    """The test of foreign tokens, for documents."""
    one = certificate.foreign
    return None if one is None or not one.tokens else {"nats": one.total, "failed": one.failed, "one_in": one.one_in}


def draw(found: Certified) -> None:
    """Print the verdict, its evidence and the first departures."""
    from rich.markup import escape
    from rich.table import Table

    from specbench.report.console import terminal

    console = terminal()
    certificate = found.certificate
    names = [certificate.verdict, *([found.verdict.kind] if found.verdict.kind else [])]
    if found.verdict.is_faulty and certificate.verdict == "the target's":
        names = names[1:]  # the tokens are, the ends are not
    console.print(f"[bold]{', '.join(names)}[/bold]: {escape(found.verdict.evidence[0])}", markup=True)
    for sentence in found.verdict.evidence[1:]:
        console.print(sentence)
    for finding in found.findings:
        console.print(f"FINDING: {finding.line}. Check {finding.check}")
    if certificate.not_covered:
        console.print(f"not covered: {certificate.not_covered}")
    table = Table(box=None, pad_edge=False, show_header=False)
    greedy = found.sampling.temperature == 0
    processing = "" if found.processing is None else f"{escape(found.processing)}, "
    rows = [
        ("target", f"{found.target}, T={found.sampling.temperature:g}, {processing}{found.dtype}"),
        ("rows", f"{found.rows}" + (f" ({found.from_text} from text, not tokens)" if found.from_text else "")),
        ("tokens", str(certificate.tokens)),
    ]
    if certificate.power is not None:
        what = (
            "share of differing tokens that would have shown, with 95%"
            if greedy
            else "total variation per token that would have shown 9 times in 10, for a fault like a wrong temperature"
        )
        rows.append(("power", f"{certificate.power:.3g}: {what}"))
    if certificate.foreign is not None and (number := certificate.foreign.one_in) is not None:
        rows.append(
            ("", f"one token in {number}: any token of the vocabulary in its place would have shown 9 times in 10")
        )
    if certificate.needed is not None:
        rows.append(("tokens needed", f"about {certificate.needed}"))
    for name, title in (("", "likelihood"), ("_draft", "draft"), ("2", "second moment"), ("_order", "order")):
        tests: Any = certificate.tests
        if tests is not None and tests[f"proof_z{name}"] is not None:
            rows.append((f"z, {title}", f"{tests[f'proof_z{name}']:+.2f}  p {tests[f'proof_p{name}']:.2g}"))
    if found.after_end:
        rows.append(("after the end", f"{found.after_end} tokens dropped"))
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)
    faults = sorted(found.departures, key=lambda pair: pair[1].is_rounding)
    for where, one in faults[:SHOWN]:
        cause = "rounding" if one.is_rounding else "not rounding"
        token = "different string" if one.token < 0 else f"token {one.token} for {one.best}"
        far = f"{one.margin:.3g} logits below the best, noise {one.noise:.2g}"
        console.print(f"{where}, token {one.position + 1}: {token}, {far}: {cause}")
    if len(faults) > SHOWN:
        console.print(f"and {len(faults) - SHOWN} more; --format json has them")


def _files_and_words(argv: list[str]) -> tuple[list[str], list[str]]:
    """File names, and the rest: a word that is no option, no value of one and has no '='."""
    files, words = list[str](), list[str]()
    for place, word in enumerate(argv):
        before = argv[place - 1] if place else ""
        is_value = before.startswith("-") and "=" not in before
        (words if word.startswith("-") or "=" in word or is_value else files).append(word)
    return files, words


def _counts(found: Certified) -> dict[str, int]:
    """The departures as CSV has them: how many there are, and how many are not rounding."""
    faults = sum(not one.is_rounding for _, one in found.departures)
    return {"departures": len(found.departures), "faults": faults}
