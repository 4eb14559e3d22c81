"""The commands that README, docs, the Makefile, conf/ and the package itself tell a reader to run."""

import ast
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from specbench.cli import VERBS
from specbench.cli.choices import GROUPS
from specbench.config.catalogue import held
from specbench.config.paths import conf_dir
from tests.support.paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")),
         ROOT / "experiments" / "README.md", ROOT / "results" / "README.md"]  # fmt: skip
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.M | re.S)
INLINE = re.compile(r"`((?:specbench|make) [^`]*)`")
ASSIGNED = re.compile(r"""(\w+)=(?:'([^']*)'|"([^"]*)")""")
LAUNCHED = re.compile(r"^(?:(?:torchrun .*?|accelerate launch) -m |[A-Z_]+=\S+ )specbench")
OPEN = ("…", "...", "NAME", "VERB")  # a pattern, not a command
HUB = re.compile(r"(?<=[=,])[\w-]+/NAME\b")  # a repository: composed as it is written


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
            launched = re.sub(LAUNCHED, "specbench", line)
            words = launched.partition("  #")[0].strip()
            if (
                words.startswith("specbench ")
                and len(words.split()) > 1
                and not words.endswith("=")
                and not any(word in HUB.sub("", words) for word in OPEN)
            ):
                found.setdefault(words, Command(page.name, words))
    return list(found.values())


def _lines(block: str) -> list[str]:
    """The lines of a block, with the variables that it sets put in."""
    values = {name: one or other for name, one, other in ASSIGNED.findall(block.partition("specbench")[0])}
    return [re.sub(r"\$(\w+)", lambda found: values.get(found[1], found[0]), line) for line in block.splitlines()]


def made(target: str, *variables: str) -> list[Command]:
    """The `specbench` commands that `make target` runs."""
    done = subprocess.run(
        ["make", "-n", "READY=", "BIN=.", target, *variables], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [Command("Makefile", line) for line in re.findall(r"\./(specbench [^\n;&|]*)", done.stdout)]


def make_targets() -> list[str]:
    """The targets of `make` that the pages name."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    found = re.findall(r"^make ([^#\n]*)|`make ([^`]*)`", text, re.M)
    words = [word for line in found for word in "".join(line).partition('"')[0].split()]
    return sorted({word for word in words if re.fullmatch(r"[a-z-]+", word)})


# What error lines, `--help`, notes of `list` and files of conf/ tell a reader to run.

PLACE = re.compile("\x00([^\x00]*)\x00")  # an expression of an f-string
CLOSES = "`'),;:.…"
# Words that follow the name of the project in a sentence: there it is no command.
PROSE = {"that", "reads", "or", "again", "holds", "knows", "itself", "does"}
# What the expressions of the package's f-strings stand for in its commands, by the file they are in.
FILLED = {
    "report/tables/shorter": {"name": ("table4",)},
    "api": {"key": ("target", "draft", "task")},
    "cli/groups": {"key": ("gamma",)},
    "cli/sample_size": {"100 * within": ("2",)},
    "cli/choices": {"Path(path).name": ("gpt-97m",)},
    "cli/listing": {"group": GROUPS},
    "cli/options": {"verb": ("list",)},
    "cli/results": {"run": ("last",)},
    "cli/usage": {"verb": ("run",), "line": ("[key=value",), "group": GROUPS},
    "compose/suggestions": {"group": GROUPS},
    "compose/hydra_app": {"verb": ("run",), "group": GROUPS},
    "compose/words": {
        "option": ("accept", "tree", "experiment", "recipe"),
        "key": ("draft",),
        "group": GROUPS,
        "verb": ("bench",),
        "listed": ("unigram,bigram",),
        "others": ("",),
    },
    "config/draft": {
        "self.recipe": (
            "blockwise",
            "medusa",
            "hydra",
            "eagle",
            "eagle3",
            "specdec",
            "pass",
            "mtp",
            "pard",
            "peagle",
            "dflash",
            "dspark",
        )
    },
    "config/recipes": {
        "Path(path).name": ("gpt-97m", "gpt-6m", "t5-nano-ende"),
        "takes": ("",),
        "recipe": (
            "blockwise",
            "dflash",
            "dspark",
            "eagle",
            "eagle3",
            "hydra",
            "medusa",
            "mtp",
            "pard",
            "pass",
            "peagle",
            "specdec",
        ),
        "shlex.quote(target or 'TARGET')": ("TARGET",),
        "start": (" model.start_from=DRAFT",),
    },
    "config/verbs": {"verb": ("alpha",)},
    "methods/target_layers/config": {"key": ("draft",), "AUTO": ("auto",)},
    "report/paper": {"plan['sweep']": ("table2",), "verb": ("sweep",)},
    "report/summary_text": {"digest(record['run_id'])": ("RUN",)},
    "report/tables/notes": {"100 * WITHIN": ("2",)},
    "train/card": {"composed_from": ("gpt-mini",)},
}


def printed() -> list[Command]:
    """Every `specbench` command with arguments that the package or a file of conf/ holds, each once."""
    found = {}
    for page, text in [*_strings_of_the_package(), *_texts_of_conf()]:
        for written in _commands_in(text):
            for line in _filled(written, page):
                found.setdefault(line, Command(page, line))
    return list(found.values())


def commands_in(text: str) -> list[str]:
    """The commands with arguments in a text on the screen."""
    return [line for line in _commands_in(" ".join(text.split())) if not PLACE.search(line)]


def named_choices() -> Iterator[tuple[str, str, str]]:
    """(where, group, name) of each choice that the package's strings or files of conf/ name, as in `recipe=eagle`."""
    for page, text in [*_strings_of_the_package(), *_texts_of_conf()]:
        for group, name in re.findall(rf"(?<![\w.@]){_either(GROUPS)}=([a-z0-9][\w.-]*\w)(?![\w/\x00@])", text):
            yield page, group, name


def _either(words: Iterator[str] | tuple[str, ...]) -> str:
    return f"({'|'.join(words)})"


def exists(group: str, name: str) -> bool:
    """Whether `group=name` can be picked."""
    return (conf_dir() / group / f"{name}.yaml").is_file() or name in held(group)


@cache
def _strings_of_the_package() -> list[tuple[str, str]]:
    """Every string but docstrings, after the place of its file; expressions of f-strings stand between zeros."""
    return list(_strings())


def _strings() -> Iterator[tuple[str, str]]:
    package = ROOT / "specbench"
    for file in sorted(package.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        parts: set[ast.AST] = set()
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and body and isinstance(body[0], ast.Expr):
                parts.add(body[0].value)
            if isinstance(node, ast.JoinedStr):
                parts.update(node.values)
        page = str(file.relative_to(package).with_suffix(""))
        for node in ast.walk(tree):
            if node in parts:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield page, " ".join(node.value.split())
            elif isinstance(node, ast.JoinedStr):
                yield page, " ".join("".join(map(_piece, node.values)).split())


def _piece(part: ast.expr) -> str:
    if isinstance(part, ast.FormattedValue):
        return f"\x00{ast.unparse(part.value).replace(' ', chr(1))}\x00"
    assert isinstance(part, ast.Constant)
    return str(part.value)


def _texts_of_conf() -> Iterator[tuple[str, str]]:
    """Every file of conf/ and every experiment in one line, without the marks of its comments."""
    for file in [*sorted((ROOT / "conf").rglob("*.yaml")), *sorted((ROOT / "experiments").glob("*.yaml"))]:
        lines = [line.replace("# ", " ") for line in file.read_text(encoding="utf-8").splitlines()]
        yield str(file.relative_to(ROOT)), " ".join(" ".join(lines).split())


def _commands_in(text: str) -> Iterator[str]:
    for start in re.finditer(r"(?<![\w/@-])specbench (?=\S)", text):
        quote = text[start.start() - 1 : start.start()]
        rest = text[start.end() :]
        if quote in ("`", "'") and quote in rest:
            whole = rest.partition(quote)[0] if quote == "`" else re.match(r"[^']*(?:'[^']*'[^']*)*?(?=')", rest)[0]
            words = whole.split()
        else:
            words = list(_words(rest))
        verb = words[0].strip(CLOSES) if words else ""
        if verb in VERBS:
            if len(words) > 1:
                line = " ".join(["specbench", *words])
                if not re.search(r"(experiment|recipe|target|draft)=NAME\b", line):  # a pattern, not a command
                    yield line
        elif words and not PLACE.fullmatch(verb):
            assert verb in PROSE or not verb.isalpha() or verb.isupper(), f"{verb} is no verb of specbench: {text}"


def _words(rest: str) -> Iterator[str]:
    """The verb and its arguments, up to the first word of the sentence that goes on."""
    after_option = False
    for place, word in enumerate(re.findall(r"'[^']*'\S*|[\w.@]+='[^']*'\S*|\S+", rest)):
        bare = word.rstrip(CLOSES.replace("'", ""))
        bare = bare if bare.count("'") % 2 == 0 else bare.rstrip(CLOSES)  # a quote of the sentence, not of the word
        bare = bare.rstrip(")") if "(" not in bare else bare
        is_argument = "=" in bare or bare.startswith("--") or re.fullmatch(r"[A-Z][A-Z0-9_.]*(\.jsonl)?", bare)
        if place and not (is_argument or after_option or bare in GROUPS):
            return
        yield bare
        if bare != word:
            return
        after_option = bare.startswith("--") and "=" not in bare


def _filled(line: str, page: str) -> list[str]:
    """The line with each expression replaced by every value that FILLED has for it."""
    lines = [line]
    for expression in dict.fromkeys(PLACE.findall(line)):
        values = FILLED.get(page, {}).get(expression.replace(chr(1), " "))
        assert values, f"{page}: FILLED has no value of {expression!r} in {line!r}"
        lines = [one.replace(f"\x00{expression}\x00", value) for one in lines for value in values]
    return lines
