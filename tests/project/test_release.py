"""What is published and what others check: the wheel, the citation, the container, the page of claims."""

import ast
import io
import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from specbench.records.catalog import digest
from specbench.records.kept_form import ENDING
from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import artifact
import check_wheel


def packed(folder: Path, without: str = "", beside: str = "", results: str = "", version: str = "1.2.3") -> Path:
    """A checkout of three files, and a wheel and a source archive of it; with a file less, or more."""
    for name in ("specbench/cli.py", "specbench/__pycache__/cli.pyc", "conf/run.yaml", "experiments/table1.yaml"):
        (folder / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "root" / name).touch()
    inside = {"specbench/cli.py", "specbench/conf/run.yaml", "specbench/experiments/table1.yaml"} - {without}
    about = f"specbench_toolkit-{version}.dist-info"
    dist = folder / "dist"
    dist.mkdir()
    with zipfile.ZipFile(dist / f"specbench_toolkit-{version}-py3-none-any.whl", "w") as wheel:
        for name in {*inside, f"{about}/licenses/LICENSE", *filter(None, [beside])}:
            wheel.writestr(name, "")
        wheel.writestr(f"{about}/entry_points.txt", "[console_scripts]\nspecbench = specbench.cli:main\n")
    with tarfile.open(dist / f"specbench_toolkit-{version}.tar.gz", "w:gz") as archive:
        for name in ("pyproject.toml", *filter(None, [results])):
            archive.addfile(tarfile.TarInfo(f"specbench_toolkit-{version}/{name}"), io.BytesIO())
    return dist


@pytest.mark.parametrize(
    ("changes", "tag", "said"),
    [
        ({}, "", None),
        ({}, "v1.2.3", None),
        ({}, "v1.2.4", "the tag is v1.2.4"),
        ({"without": "specbench/conf/run.yaml"}, "", "lacks specbench/conf/run.yaml"),
        ({"beside": "tests/test_x.py"}, "", "must not hold tests/test_x.py"),
        ({"beside": "specbench/__pycache__/cli.pyc"}, "", "must not hold specbench/__pycache__/cli.pyc"),
        ({"results": "results/kept/run.json.xz"}, "", "must not hold results/kept/run.json.xz"),
    ],
)
def test_what_is_published(tmp_path: Path, changes: dict[str, Any], tag: str, said: str | None) -> None:
    found = list(check_wheel.faults(packed(tmp_path, **changes), tmp_path / "root", tag))
    assert (found == []) if said is None else (len(found) == 1 and said in found[0])


NEEDED_BY_NAME = {"hydra": "hydra-core", "yaml": "pyyaml", "rouge_score": "rouge-score"}
# Looked for, and done without: a GPU's driver, a compiler that comes with torch's GPU builds.
OPTIONAL = {"pynvml", "triton"}


def test_every_package_that_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    packages = [*project["dependencies"], *extras["gguf"], *extras["peft"]]
    declared = {re.split(r"[><=\[ ]", one)[0].lower().replace("_", "-") for one in packages}
    imported = set[str]()
    for file in (ROOT / "specbench").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            imported |= {name.partition(".")[0] for name in names}
    others = imported - sys.stdlib_module_names - OPTIONAL - {"specbench"}
    assert {NEEDED_BY_NAME.get(name, name.replace("_", "-")).lower() for name in others} <= declared


def test_a_wheel_that_is_too_large_or_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dist = packed(tmp_path)
    monkeypatch.setattr(check_wheel, "MOST_BYTES", 100)
    assert any("the most is" in line for line in check_wheel.faults(dist, tmp_path / "root"))
    next(dist.glob("*.whl")).unlink()
    (fault,) = check_wheel.faults(dist)
    assert fault.endswith("has 0 wheels and 1 source archives, and must have one of each")


def test_a_wheel_of_this_tree_holds_what_ships() -> None:
    wanted = check_wheel.wanted(ROOT)
    for name in (
        "conf/run.yaml",
        "experiments/paper.yaml",
        "shipped/models/t5-mini/model.safetensors",
        "kernels/__init__.py",
    ):
        assert f"specbench/{name}" in wanted
    assert not any("__pycache__" in name for name in wanted)


def test_the_citation_is_cff() -> None:
    """The fields that CFF 1.2 requires, the version of the package, and no DOI before there is one."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    known = {"cff-version", "message", "title", "type", "version", "license", "abstract", "keywords", "authors",
             "references", "doi", "date-released", "identifiers", "repository-code"}  # fmt: skip
    assert citation.keys() <= known and citation["cff-version"] == "1.2.0"
    assert citation.keys() >= {"message", "title", "authors"} and all("name" in one for one in citation["authors"])
    version = re.search(r'__version__ = "(.*)"', (ROOT / "specbench" / "__init__.py").read_text(encoding="utf-8"))
    assert version is not None and str(citation["version"]) == version[1]
    assert re.fullmatch(r"10\.\d{4,}/\S+", citation.get("doi", "10.0000/none"))
    for one in citation["references"]:
        assert one.keys() >= {"type", "title", "authors"}


def test_the_container_runs_the_commands_of_readme() -> None:
    lines = (ROOT / "Containerfile").read_text(encoding="utf-8").splitlines()
    (base,) = (line for line in lines if line.startswith("FROM "))
    assert re.fullmatch(r"FROM \S+:3\.1\d[\w.-]*(@sha256:[0-9a-f]{64})?", base)
    (command,) = (line for line in lines if line.startswith("CMD "))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for made in re.findall(r"make \w+", command):
        assert f"\n{made} " in readme
    assert set(re.findall(r"make \w+", command)) == {"make run", "make test"}
    # docker reads no .containerignore, and podman reads both: this machine's .venv stays out with either.
    assert ".venv" in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert not (ROOT / ".containerignore").exists()


FAST = next((ROOT / "results" / "kept").glob("t5-mini-t5-nano-top1000-ende-mini-T0-g3-*")).name.removesuffix(ENDING)
CLAIM = {"claim": "it is fast", "command": "make run", "takes": "a minute", "run": digest(FAST), "value": "speedup"}


def kept(folder: Path) -> Path:
    (folder / "kept").symlink_to(ROOT / "results" / "kept")
    return folder


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "measured: record"),
        ({"least": 0.5}, "holds: record"),
        ({"least": 9}, "does not hold: record"),
        ({"why": "no GPU"}, "not measured: no GPU"),
    ],
)
def test_a_claim_has_a_verdict(tmp_path: Path, changes: dict[str, Any], verdict: str) -> None:
    row = artifact.readme(kept(tmp_path), [CLAIM | changes]).splitlines()[-1]
    assert verdict in row and "`make run`" in row


def test_a_claim_about_what_no_record_has_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no sped"):
        artifact.readme(kept(tmp_path), [CLAIM | {"value": "sped"}])
    claim = CLAIM | {"bench": "results/bench-t5-mini-t5-nano-top1000-cpu-bfloat16.json", "row": "x"}
    with pytest.raises(ValueError, match="has no row 'x'"):
        artifact.readme(tmp_path, [claim])


def test_every_number_of_the_paper_is_in_the_page_of_claims(tmp_path: Path) -> None:
    rows = artifact.of_paper(tmp_path).splitlines()[2:]
    assert sum(int(re.search(r": (\d+) numbers", row)[1]) for row in rows) == 103  # type: ignore[index]
    assert sum("not measured" in row for row in rows) == 5


def test_the_lock_has_the_versions_of_the_constraints_and_hashes() -> None:
    def versions(text: str) -> dict[str, str]:
        found = re.findall(r"^([\w.-]+)==([^ ;\\\n]+)", text, re.M)
        return {re.sub(r"[._-]+", "-", name).lower(): version for name, version in found}

    text = (ROOT / "locks" / "requirements.lock").read_text()
    locked, pinned = versions(text), versions((ROOT / "constraints.txt").read_text())
    assert {name: version for name, version in locked.items() if pinned.get(name, version) != version} == {}
    assert not {"torch", "transformers", "datasets", "hydra-core", "pytest"} - locked.keys()
    packages = re.split(r"^(?=[\w.-]+==)", text, flags=re.M)[1:]
    assert len(packages) >= len(locked) and all("--hash=sha256:" in package for package in packages)
