"""`specbench explain --draft`: what differs between a target and a draft, before anything is run."""

from collections.abc import Mapping, Sequence
from functools import partial

from specbench.cli.formats import print_rows
from specbench.config.model import ModelConfig, check_model
from specbench.config.schema import RunConfig
from specbench.errors import UserError
from specbench.report.console import plain_table, wide_console


def compare_configs(words: Sequence[str]) -> int:
    """Print what differs between the configs and tokenizers of the target and the draft of a run of these keys."""
    from specbench.cli.overrides import read
    from specbench.compose.hydra_app import launch_one

    command = read(words, RunConfig)
    launch_one(partial(_compare, command.form), RunConfig, command.argv, "explain")
    return 0


def _compare(form: str, config: RunConfig) -> None:
    if not isinstance(config.draft, ModelConfig):
        raise UserError(f"--draft: draft={config.draft.label()} has no config or tokenizer of its own to compare")
    check_model("target", config.target)
    config.draft.check("draft")
    from specbench.analysis.findings.checkpoint import read_checkpoint
    from specbench.analysis.findings.configs import differences

    target, draft = read_checkpoint(config.target, "target"), read_checkpoint(config.draft, "draft")
    found = [one.to_json() for one in differences(target, draft)]
    print_rows(form, found, lambda: _draw_differences(target.name, draft.name, found))


def _draw_differences(target: str, draft: str, found: Sequence[Mapping[str, str]]) -> None:
    console = wide_console()
    if not found:
        console.print(f"{target} and {draft}: their configs and tokenizers say the same")
        return
    table = plain_table(("", target, draft, "matters", "why"), left=("", target, draft, "matters", "why"))
    for one in found:
        table.add_row(one["what"], one["target"], one["draft"], one["matters"], one["why"])
    console.print(table)
