"""Where tests lie: in a folder that is named as a room of specbench, and no test file needs another."""

import ast
from pathlib import Path

from tests.support.paths import ROOT

TESTS = ROOT / "tests"
FILES = sorted(TESTS.rglob("test_*.py"))
COSTLY = {"network", "load_tokenizer", "load_network", "load_model", "with_engine", "autoregressive", "speculative"}
# The repository itself: docs, workflows, tools; what several test files use; tests on real engines.
OTHERS = {"project", "support", "engines"}


def imported(text: str) -> list[str]:
    """The modules of tests/ that `text` imports, in whatever way."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [one.name for one in node.names]
        if isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{one.name}" for one in node.names]
    return [name for name in found if name.startswith("tests.") or name.rpartition(".")[2].startswith("test_")]


def test_a_folder_of_tests_is_named_as_a_room() -> None:
    folders = {file.parent.relative_to(TESTS) for file in FILES} - {Path(".")}
    strangers = [str(one) for one in folders if str(one) not in OTHERS and not (ROOT / "specbench" / one).is_dir()]
    assert strangers == [] and len(folders) > 40


def test_no_test_file_imports_another() -> None:
    own = [
        f"{file.relative_to(TESTS)} imports {name}"
        for file in sorted(TESTS.rglob("*.py"))
        for name in imported(file.read_text(encoding="utf-8"))
        if not name.startswith("tests.support.") and name != "tests.support"
    ]
    assert own == []


def test_an_import_of_another_test_file_is_seen() -> None:
    ways = [
        "import tests.cli.test_run",
        "from tests.cli import test_run",
        "from tests.cli.test_run import x",
        "import test_run",
    ]
    assert all(imported(f"def test() -> None:\n    {way}\n") for way in ways)
    assert imported("import json\nfrom specbench.cli import main\n") == []


def called_at_import(text: str) -> list[str]:
    """Functions of COSTLY that a module with `text` calls while it is imported."""
    waiting: list[ast.AST] = list(ast.parse(text).body)
    found = []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            waiting += [] if isinstance(node, ast.Lambda) else node.decorator_list
            continue
        if isinstance(node, ast.Call):
            found.append(node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
        waiting += ast.iter_child_nodes(node)
    return [name for name in found if name in COSTLY]


def test_no_test_file_loads_or_decodes_at_import() -> None:
    """Every process of a test run imports all of them."""
    assert [f"{file.name}: {name}" for file in FILES for name in called_at_import(file.read_text("utf-8"))] == []


def test_work_at_import_is_seen() -> None:
    assert called_at_import("MADE = {kind: EagerModel(networks.network(kind)) for kind in KINDS}\n") == ["network"]
    assert called_at_import("def made():\n    return network('t5')\nLATER = lambda: network('t5')\n") == []
