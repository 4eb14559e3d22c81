"""One topic a file: a comment that stands alone in the middle of a file, as a docstring does, begins another."""

from pathlib import Path

import specbench

MOST = 17  # that are left; whoever moves one lowers this


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
    assert len(found) <= MOST, "\n".join(found)


def test_a_banner_is_seen() -> None:
    own = '"""Doc."""\n\nA = 1  # number\n\n\n# Other things.\n#\n# More.\n\n\nB = 2\n\n# Of C.\nC = 3\n'
    assert banners(own) == [6]
