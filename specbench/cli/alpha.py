"""`specbench alpha`: the acceptance rate of many drafts in one go."""

import sys
from pathlib import Path
from typing import Any

from specbench.cli.lists import launch_each
from specbench.config import ChooseConfig, check_choose

HELP = """usage: specbench alpha target=NAME 'draft=[NAME,NAME,...]' [key=value ...]

alpha of every draft from one sample: the target writes its own text once (kept in results/samples/, and taken up by
every later call), and each draft is scored on it by teacher forcing. No gamma is tried: alpha does not depend on it.
Writes results/alpha/ID.json and shows a table with 95% intervals.

  'draft=[A,B]'     any drafts of `specbench run`; folders as 'draft.path=[DIR1,DIR2]'; both lists add up
  sampling.temperature=T  or 'sampling.temperature=[0,1]' (default both, with a sample for each: alpha at T is defined
                    along text that the target writes at that T)
  tokens=N          size of the sample (default 10000 on a GPU, 2000 on a CPU); the interval says what that buys
  'leniences=[1.0,0.5]'  of alpha(l), appendix A.5
  target= task= limit= max_new_tokens= seed= dtype= device= engine= threads= results=   as in `specbench run --help`
"""


def main(argv: list[str]) -> int:
    if "--help" in argv or "-h" in argv:
        print(HELP)
        return 0
    launch_each(job, "choose", ChooseConfig, argv, "alpha", {"sampling.temperature": ["0", "1"]})
    return 0


def job(configs: list[ChooseConfig]) -> None:
    for config in configs:
        check_choose(config)
    from specbench.choose.alpha import measure_alpha  # torch is imported only from here on
    from specbench.cli.screen import Screen

    with Screen(sys.stderr, "working", "{} of {}") as screen:
        file, record = measure_alpha(configs, screen)
    show(file, record)


def show(file: Path, record: dict[str, Any]) -> None:
    """alpha by draft and temperature, then alpha(l); and what it took."""
    from rich.console import Console
    from rich.table import Table

    from specbench.measure.intervals import FEW_PROMPTS

    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 120)
    rows = record["rows"]
    first = rows[0]
    console.print(f"α of drafts for [bold]{first['target']}[/bold] on {first['task']}, {first['dtype']}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in (
        "draft",
        "T",
        "α",
        "95%",
        *(f"α(l={one})" for one in first["lenient"] if one != "1"),
        "tokens",
        "prompts",
    ):
        table.add_column(title, justify="left" if title == "draft" else "right")
    for row in sorted(rows, key=lambda row: (row["temperature"], -row["alpha"])):
        low, high = row["alpha_low"], row["alpha_high"]
        table.add_row(
            row["draft"], f"{row['temperature']:g}", f"{row['alpha']:.3f}",
            "–" if low is None else f"{low:.3f}–{high:.3f}",
            *(f"{value['value']:.3f}" for one, value in row["lenient"].items() if one != "1"),
            str(row["tokens"]), str(row["prompts"]),
        )  # fmt: skip
    console.print(table)
    for setting in record["settings"]:
        kept = f", {setting['texts_reused']} texts of it kept from before" if setting["texts_reused"] else ""
        console.print(
            f"T={setting['temperature']:g}: the sample took {setting['sample_s']:.1f} s to write{kept}; "
            f"scoring {len(setting['drafts'])} drafts took {setting['score_s']:.1f} s"
        )
    if min(row["prompts"] for row in rows) < FEW_PROMPTS:
        console.print(f"{min(row['prompts'] for row in rows)} prompts are few: the intervals are rough")
    console.print(f"record: {file}")
