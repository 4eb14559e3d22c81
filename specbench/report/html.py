"""The pages' templates, and the files that they hold inline."""

from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def environment() -> Environment:
    """Templates in which all text is escaped and a missing value is an error."""
    return Environment(
        loader=PackageLoader("specbench.report"), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )


def inline(name: str) -> Markup:
    """A style sheet or script beside the templates, as it is."""
    return Markup(files("specbench.report").joinpath("templates", name).read_text(encoding="utf-8"))
