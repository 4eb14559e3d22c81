"""Where the files that come with the package lie."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def conf_dir() -> Path:
    """The folder of what can be picked: inside the package in a wheel, beside it in a checkout."""
    inside = PACKAGE / "conf"
    return inside if inside.is_dir() else PACKAGE.parent / "conf"


def shipped(*parts: str) -> Path:
    """A model folder or data file that ships with the project."""
    return PACKAGE.joinpath("shipped", *parts)
