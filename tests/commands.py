"""The commands that README, docs and the Makefile tell a reader to run, with their placeholders filled in."""

import ast
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")),
         ROOT / "experiments" / "README.md", ROOT / "results" / "README.md"]  # fmt: skip
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.M | re.S)
INLINE = re.compile(r"`((?:specbench|make) [^`]*)`")
ASSIGNED = re.compile(r"""(\w+)=(?:'([^']*)'|"([^"]*)")""")
OPEN = ("…", "...", "NAME", "VERB")  # a pattern, not a command


@dataclass(frozen=True)
class Command:
    """A command line as it is written, and where."""

    page: str
    line: str

    @property
    def argv(self) -> list[str]:
        """Its words after `specbench`."""
        return shlex.split(self.line, comments=True)[1:]


def documented() -> list[Command]:
    """Every `specbench` command of the pages, each once; patterns like `recipe=NAME` are left out."""
    found = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = FENCED.findall(text)
        lines = [line for block in blocks for line in _lines(block)]
        inline = [" ".join(words.split()) for words in INLINE.findall(FENCED.sub("", text))]
        lines += [words for words in inline if len(words.split()) > 2]  # `specbench read` in a sentence names the verb
        for line in lines:
            launched = re.sub(r"^(?:torchrun .*?|accelerate launch) -m specbench", "specbench", line)
            words = launched.partition("  #")[0].strip()
            if (
                words.startswith("specbench ")
                and len(words.split()) > 1
                and not words.endswith("=")
                and not any(word in words for word in OPEN)
            ):
                found.setdefault(words, Command(page.name, words))
    return list(found.values())


def _lines(block: str) -> list[str]:
    """The lines of a block, with the variables that it sets put in."""
    values = {name: one or other for name, one, other in ASSIGNED.findall(block.partition("specbench")[0])}
    return [re.sub(r"\$(\w+)", lambda found: values.get(found[1], found[0]), line) for line in block.splitlines()]


# In a sentence: a verb, and options and keys up to the first word that is neither.
WORD = r"(?:--[a-z-]+|'?[a-z_]+(?:\.[a-z_]+)*=(?:\[[^\]]*\]'?|(?:[^\s,;:()`'\"]|,(?=\S))+'?))"
PRINTED = re.compile(rf"(?<![\w.-])specbench [a-z]+(?: {WORD})*")
QUOTED = re.compile(r"[`']specbench ([a-z]+)")
# What the code puts into its lines, by the text before it.
FILLED = (("recipe=", "medusa"), ("specbench list ", "draft"), ("target=", "t5-mini"), ("draft=", "bigram"))


def printed() -> list[Command]:
    """Every `specbench` command with an option or a key in the strings of the source and in the notes of `conf`."""
    found = {}
    for file in [*sorted((ROOT / "specbench").rglob("*.py")), *sorted((ROOT / "conf").rglob("*.yaml"))]:
        text = file.read_text(encoding="utf-8")
        for said in _strings(text) if file.suffix == ".py" else [" ".join(text.replace("#", " ").split())]:
            for line in PRINTED.findall(said):
                if len(line.split()) > 2 and "\0" not in line:
                    found.setdefault(line.rstrip("."), Command(file.name, line.rstrip(".")))
    return list(found.values())


def verbs_named() -> set[str]:
    """The verb of each command in quotes or backticks in the source."""
    texts = [file.read_text(encoding="utf-8") for file in (ROOT / "specbench").rglob("*.py")]
    return {verb for text in texts for said in _strings(text) for verb in QUOTED.findall(said)}


def _strings(source: str) -> list[str]:
    """The strings of a module, with what they are formatted with filled in, or a null character for it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            text = ""
            for part in node.values:
                if isinstance(part, ast.Constant):
                    text += str(part.value)
                else:
                    text += next((value for before, value in FILLED if text.endswith(before)), "\0")
            found.append(text)
    return found


def made(target: str, *variables: str) -> list[Command]:
    """The `specbench` commands that `make target` runs."""
    done = subprocess.run(
        ["make", "-n", "READY=", "BIN=.", target, *variables], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [Command("Makefile", line) for line in re.findall(r"\./(specbench [^\n;&]*)", done.stdout)]


def make_targets() -> list[str]:
    """The targets of `make` that the pages name."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    found = re.findall(r"^make ([^#\n]*)|`make ([^`]*)`", text, re.M)
    words = [word for line in found for word in "".join(line).partition('"')[0].split()]
    return sorted({word for word in words if re.fullmatch(r"[a-z-]+", word)})
