"""Turns of phrase that make a sentence be read twice: `make check` fails with file and line.

It finds only what a pattern can tell. It reads the repository's pages, the strings of `specbench/` (help, error lines,
the screen, descriptions of recorded fields), docstrings and comments of `specbench/`, `experiments/` and `tools/`, also
in C, and the choices in `conf/` and `experiments/` with their comments. In pages it skips code, link addresses,
comments and what `tools/docs_numbers.py` writes.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "specbench"
IN_C = (".c", ".h")
UNIT = r"(?:tokens|ms|µs|seconds|steps|passes|bits|bytes|[KMGT]?B|nats|joules|requests|transfers|\d s|scored)"
OVER = r"(?:second|minute|hour|token|pass|step|prompt|request|weight|row|line|completion|proposal|layer|head|position)"
THING = r"(?:line|row|file|page|column|field|figure|folder)"
ABSENT = r"(?:possible|allowed|available|needed|necessary|missing|unset)"
PRONOUN = r"(?:it|they|that|this|these|those|there|none|either|neither|one|both|nothing)"
VERB = r"(?:is|are|was|were|has|have|had|does|do|did|costs?|differs?|fits?|says?)"
BY_ITSELF = "".join(f"(?<!{before} )" for before in ("target", "measured", "measure it", "time it", "fail", "run"))
TICS = {
    "'per', not 'a'": (
        rf"\b{UNIT} an? (?:draft |drafted |output )?{OVER}\b(?! emits)",
        r"(?<![<>=≤≥] )\b\d+ an? (?:second|minute|hour|token)\b",
        rf"\b(?:a|one) {THING} an? (?:{OVER}|{THING}|choice|question|run|job)\b",
        r"\b(?:one|once|twice) an? (?:draft |drafted )?(?:token|step|pass|node|file|line|record|run|job|look)\b",
    ),
    "'one X each', not 'a X each'": (r"\ban? \w+ each(?=\s*(?:[.,;:)|]|$|from\b))",),
    "'also' before the verb, not a final 'too'": (r",? too(?=\s*[.,;:)\]|])", r"\bRead, too"),
    "'only X', not 'X alone'": (rf"{BY_ITSELF}\balone\b",),
    "the noun, not 'that of'": (r"\b(?:that|those)\s+of\b",),
    "'if' or 'when', not 'where'": (
        rf"\bwhere {PRONOUN} {VERB}\b",
        rf"\bwhere {ABSENT}\b",
        r"\b(?:[Rr]aises? \w+|[Rr]aised|None) where\b",
    ),
    "subject first": (r"(?:^|[.;:|] )(?:Left out|Not (?:measured|covered|counted|read)(?: yet)?) ?(?:is|are|:)",),
    "'at most' or 'maximum'": (r"\b[Tt]he most (?:that|which|tokens|memory|nodes|bytes)\b",),
}
ARGUMENT = re.compile(r"(?<=\n)\s+\*{0,2}\w+: ")
NO_PROSE = (
    r"<!-- from: [^\n]*-->\n+(?:```.*?^```|(?:\|[^\n]*\n?)+)",  # written from records
    r"^```.*?^```",
    r"<!--.*?-->",
    r"`[^`\n]*`",
    r"\]\([^)\s]*\)",
)


def tics(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, words and rule of each tic of a page."""
    for pattern in NO_PROSE:
        text = re.sub(pattern, lambda found: re.sub(r"[^\n\])]", "·", found[0]), text, flags=re.DOTALL | re.MULTILINE)
    for rule, patterns in TICS.items():
        for found in re.finditer("|".join(patterns), text, flags=re.MULTILINE):
            yield text[: found.start()].count("\n") + 1, " ".join(found[0].split()), rule


def notes(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring of a module and of each comment; comments on lines that follow are one text.

    The name of an argument or a field at the beginning of its line is left out, and a comment ends with a full stop.
    """
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for one in body if isinstance(body, list) else ():
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                yield one.lineno, ARGUMENT.sub("", one.value.value)
    found: list[tuple[int, list[str]]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text, line, is_alone = token.string.lstrip("#: "), token.start[0], token.line.lstrip().startswith("#")
            if is_alone and found and found[-1][0] + len(found[-1][1]) == line:
                found[-1][1].append(text)
            else:
                found.append((line, [text]))
    yield from ((line, "\n".join(texts) + ".") for line, texts in found)


def notes_in_c(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each comment of a C file."""
    for found in re.finditer(r"/\*.*?\*/", source, flags=re.DOTALL):
        yield source[: found.start()].count("\n") + 1, found[0].strip("/* ") + "."


def strings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each string with a space in it that is no docstring; an f-string's expressions are an X."""
    tree = ast.parse(source)
    passed: set[ast.AST] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and body and isinstance(body[0], ast.Expr):
            passed.add(body[0].value)
        if isinstance(node, ast.JoinedStr):
            passed.update(node.values)
    for node in ast.walk(tree):
        text = None
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(one.value) if isinstance(one, ast.Constant) else "X" for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in passed:
            text = node.value
        if text is not None and " " in text:
            yield node.lineno, text


def tics_of(file: Path) -> Iterator[tuple[int, str, str]]:
    """Line, words and rule of each tic of a page, of a file of choices, or of the texts of a module."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        texts = [*notes(text), *(strings(text) if file.is_relative_to(PACKAGE) else ())]
    elif file.suffix in IN_C:
        texts = [*notes_in_c(text)]
    else:
        texts = [(1, text)]
    for first, one in texts:
        yield from ((first + line - 1, words, rule) for line, words, rule in tics(one))


def files() -> list[Path]:
    """All files that are read, in a fixed order."""
    patterns = ("*.md", "docs/*.md", "experiments/*.md", "results/README.md", "results/figures/README.md")
    patterns += ("specbench/**/*.py", "experiments/*.py", "tools/*.py", *(f"specbench/**/*{end}" for end in IN_C))
    patterns += ("conf/**/*.yaml", "experiments/*.yaml")
    return sorted(file for pattern in patterns for file in ROOT.glob(pattern))


def main() -> int:
    """Name the tics of all files; exit code 1 if there are any."""
    found = [(file, *one) for file in files() for one in sorted(tics_of(file))]
    for file, line, words, rule in found:
        print(f"{file.relative_to(ROOT)}:{line}: {words!r}: {rule}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
