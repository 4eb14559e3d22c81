"""`specbench recommend`: which draft and which gamma, why, and a proof by real runs."""

import sys
from pathlib import Path
from typing import Any

from specbench.cli.alpha import LINE, LISTS
from specbench.cli.grid import launch_each
from specbench.cli.usage import usage
from specbench.config import ChooseConfig, check_choose
from specbench.errors import UserError

ABOUT = """
Rank drafts and gammas: alpha from the target's own text (as `specbench alpha`), the cost of a pass from short timed
passes on the engine that a run uses, and from both the speedup to expect, with a 95% interval. Says why the best is the
best and what would have to change for the next to win. Writes results/recommend/ID.json.
"""
OPTIONS = LISTS | {
    "--verify N": "the same as verify=N",
    "--picture FILE": "draw the ranking: .svg, .pdf or .png",
}
MOST_ROWS = 16


def main(argv: list[str]) -> int:
    if "--help" in argv or "-h" in argv:
        print(
            usage(
                "recommend",
                ABOUT,
                ChooseConfig,
                line=LINE,
                options=OPTIONS,
            )
        )
        return 0
    overrides = _undashed(argv)
    pictures = [Path(word.partition("=")[2]) for word in overrides if word.startswith("picture=")]
    for file in pictures:
        if file.suffix not in (".svg", ".pdf", ".png"):
            raise UserError(f"--picture {file}: must end in .svg, .pdf, .png")
    overrides = [word for word in overrides if not word.startswith("picture=")]
    launch_each(lambda configs: job(configs, pictures), "choose", ChooseConfig, overrides, "recommend")
    return 0


def _undashed(argv: list[str]) -> list[str]:
    """`--verify N` as `verify=N`, and so for `--picture`."""
    joined = []
    words = iter(argv)
    for word in words:
        if word in ("--verify", "--picture"):
            joined.append(f"{word.removeprefix('--')}={next(words, '')}")
        else:
            joined.append(word.removeprefix("--") if word.startswith(("--verify=", "--picture=")) else word)
    return joined


def job(configs: list[ChooseConfig], pictures: list[Path]) -> None:
    for config in configs:
        check_choose(config)
    from specbench.choose.recommend import recommend  # torch is imported only from here on
    from specbench.cli.console import Screen

    with Screen(sys.stderr, "working", "{} of {}") as screen:
        found = recommend(configs, screen)
    show(found.file, found.record)
    for picture in pictures:
        _draw(found.record, picture)


def _draw(record: dict[str, Any], file: Path) -> None:
    from specbench.report.figure import save
    from specbench.report.figures.choosing import choosing
    from specbench.report.style import styled

    with styled():
        drawn = choosing(record, file.stem)
    for written in save(drawn, file.parent, [file.suffix.removeprefix(".")]):
        print(written)


def show(file: Path, record: dict[str, Any]) -> None:
    """The ranking, the reasons, and the proof."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 130)
    console.print(
        f"[bold]{record['target']}[/bold] on {record['task']}, T={record['temperature']:g}, {record['dtype']}, engine "
        f"{record['engine']}; a target step takes {1000 * record['target_step_s']:.2f} ms"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "draft", "γ", "α", "c", "v", "overhead", "tok/pass", "Eq. 1", "predicted", "estimated", "95%"):
        table.add_column(title, justify="left" if title in ("", "draft") else "right")
    for place, row in enumerate(record["rows"][:MOST_ROWS]):
        cost, estimated = row["cost"], row["estimated"]
        low, high = estimated["low"], estimated["high"]
        table.add_row(
            "→" if place == 0 else "", row["candidate"], str(row["gamma"]), f"{row['alpha']['value']:.3f}",
            f"{cost['c']:.3f}", f"{cost['verify_cost']:.2f}", f"{cost['overhead']:.3f}",
            f"{row['tokens_per_pass']:.2f}", f"{row['tokens_per_pass_iid']:.2f}", f"{row['predicted']:.2f}",
            f"{estimated['value']:.2f}", "–" if low is None else f"{low:.2f}–{high:.2f}",
            style="bold" if place == 0 else None,
        )  # fmt: skip
    console.print(table)
    for line in record["reasons"]:
        console.print(f"· {line}")
    if record["verified"]:
        console.print(_proof(record["verified"]))
    console.print(f"record: {file}")


def _proof(verified: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", title="run for real", title_justify="left")
    for title in ("draft", "γ", "estimated", "measured", "95%", "off by", "run"):
        table.add_column(title, justify="left" if title in ("draft", "run") else "right")
    for one in verified:
        measured = one["measured"]
        table.add_row(
            one["candidate"], str(one["gamma"]), f"{one['estimated']['value']:.2f}",
            "–" if measured is None else f"{measured:.2f}",
            "–" if one["measured_low"] is None else f"{one['measured_low']:.2f}–{one['measured_high']:.2f}",
            "–" if one["off"] is None else f"{100 * one['off']:+.1f}%",
            one["run_id"] + (" (was there already)" if one["reused"] else ""),
        )  # fmt: skip
    return table
