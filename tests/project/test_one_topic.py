"""One topic a file, and one file a name.

A comment that stands alone in the middle of a file, as a docstring does, begins another topic.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import specbench

# What each draft's folder may have: the same names do the same job for each.
OF_A_DRAFT = {"config", "draft", "network", "beside", "entries", "published", "train"}
NAMED_AFTER_OTHERS = {"cli", "config"}  # a command is named as what it runs, the keys as what has them


def banners(text: str) -> list[int]:
    """The lines, from 1, where a comment at the margin begins that has a blank line before it and after it."""
    lines, found, at = text.split("\n"), list[int](), 0
    while at < len(lines):
        stop = at
        while stop < len(lines) and lines[stop].startswith("#"):
            stop += 1
        if stop > at > 0 and not lines[at - 1] and stop < len(lines) and not lines[stop]:
            found.append(at + 1)
        at = max(stop, at + 1)
    return found


def test_no_file_begins_another_topic() -> None:
    own = Path(specbench.__file__).parent
    found = [
        f"{file.relative_to(own)}:{line}" for file in sorted(own.rglob("*.py")) for line in banners(file.read_text())
    ]
    assert not found, "\n".join(found)


def test_a_banner_is_seen() -> None:
    own = '"""Doc."""\n\nA = 1  # number\n\n\n# Other things.\n#\n# More.\n\n\nB = 2\n\n# Of C.\nC = 3\n'
    assert banners(own) == [6]


def namesakes(files: Iterable[str]) -> dict[str, list[str]]:
    """By name the files, of paths below the package, that share it, though nothing says that they do the same job."""
    found = defaultdict[str, list[str]](list)
    for file in map(PurePosixPath, files):
        own = file.parent.parent.name == "methods" and file.stem in OF_A_DRAFT
        if not own and file.parts[0] not in NAMED_AFTER_OTHERS and file.stem != "__init__":
            found[file.stem].append(str(file))
    return {name: each for name, each in found.items() if len(each) > 1}


def test_no_two_files_share_a_name() -> None:
    own = Path(specbench.__file__).parent
    assert namesakes(file.relative_to(own).as_posix() for file in sorted(own.rglob("*.py"))) == {}


def test_a_namesake_is_seen() -> None:
    fine = ["cli/train.py", "methods/a/train.py", "methods/b/train.py", "train/__init__.py", "tasks/__init__.py"]
    assert namesakes([*fine, "config/rows.py", "kernels/rows.py"]) == {}
    assert namesakes([*fine, "tasks/rows.py", "kernels/rows.py", "methods/a/rows.py"]) == {
        "rows": ["tasks/rows.py", "kernels/rows.py", "methods/a/rows.py"]
    }
    assert namesakes(["methods/a/draft.py", "methods/draft.py", "algorithm/draft.py"]) == {
        "draft": ["methods/draft.py", "algorithm/draft.py"]
    }
