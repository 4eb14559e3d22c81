"""Docstrings of the package say their subject first: none begins with a word that needs the sentence before it."""

import ast
import re
from pathlib import Path

import specbench

LATE_SUBJECT = re.compile(r"\s*(Of|Those|As|See|The same|Its|With|From|Which)\b")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def late_subjects(source: str) -> list[str]:
    """The line and the beginning of each docstring of a module, its classes and functions that begins so."""
    found = []
    for node in ast.walk(ast.parse(source)):
        text = (ast.get_docstring(node) or "") if isinstance(node, DOCUMENTED) else ""
        if isinstance(node, DOCUMENTED) and LATE_SUBJECT.match(text):
            found.append(f"{node.body[0].lineno}: {text.splitlines()[0]}")
    return found


def test_docstrings_say_their_subject_first() -> None:
    own = Path(specbench.__file__).parent
    found = [
        f"{file.relative_to(own)}:{late}"
        for file in sorted(own.rglob("*.py"))
        for late in late_subjects(file.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_a_late_subject_is_seen() -> None:
    source = '"""From a to b."""\n\n\nclass A:\n    """A thing."""\n\n    def f(self):\n        """The same of c."""\n'
    assert late_subjects(source) == ["1: From a to b.", "8: The same of c."]
    assert not late_subjects('def f():\n    """Often, and of d."""\n')
