"""Where the files that come with the package lie."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def conf_dir() -> Path:
    """The folder of what can be picked: inside the package in a wheel, beside it in a checkout."""
    return _beside_or_inside("conf")


def experiments_dir() -> Path:
    """The folder of the paper's tables and figures and of its printed values; found as `conf_dir` is."""
    return _beside_or_inside("experiments")


def _beside_or_inside(name: str) -> Path:
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name


def shipped(*parts: str) -> Path:
    """A model folder or data file that ships with the project."""
    return PACKAGE.joinpath("shipped", *parts)
