"""`specbench show`: a run's text pass by pass, in colour, as in the paper's Figure 1."""

from specbench.cli.formats import draw_picture, picture_file
from specbench.cli.options import RUN, options
from specbench.errors import UserError
from specbench.records.numbers import Summary
from specbench.records.run_record import RunRecord
from specbench.records.served import is_served

# Colour is not the only sign: rejected tokens are struck out, the target's tokens are underlined.
STYLES = {"accepted": "green", "rejected": "red strike", "target": "bold blue underline"}
MARKS = {"accepted": "{}", "rejected": "-{}-", "target": "+{}+"}  # without colour, as in a pipe
WORDS = {"accepted": "drafted and accepted", "rejected": "drafted and rejected", "target": "from the target"}


def main(argv: list[str]) -> int:
    """Run `specbench show` with the words `argv`."""
    parser = options("show", "A completion, one line per target pass: accepted, rejected and corrected tokens.")
    parser.add_argument("run", metavar="RUN", nargs="?", default="last", help=f"{RUN} (the default)")
    parser.add_argument(
        "--prompt", type=int, metavar="N", help="number of the prompt, from 1 (default: a typical prompt)"
    )
    parser.add_argument(
        "--tree", type=int, metavar="N", help="for a run of trees: draw the tree of pass N (default: a typical pass)"
    )
    parser.add_argument("--picture", metavar="FILE", help="also write it as a figure: .svg, .pdf or .png")
    arguments = parser.read(argv)
    picture = picture_file(arguments.picture)
    from specbench.records.catalog import Catalog
    from specbench.report.marked_passes import typical_prompt

    catalog = Catalog(arguments.results)
    record = catalog.whole(catalog.find(arguments.run))
    if is_served(record):
        raise UserError(
            f"{record['run_id']}: is of a server, whose passes are not seen; 'specbench results RUN' shows it"
        )
    prompts = len(record["prompts"])
    if arguments.prompt is not None and not 1 <= arguments.prompt <= prompts:
        raise UserError(f"--prompt {arguments.prompt}: this run has prompts 1 to {prompts}")
    number = typical_prompt(record) if arguments.prompt is None else arguments.prompt - 1
    _print(record, number)
    _print_tree(record, number, arguments.tree)
    if picture is not None:
        from specbench.report.figures.of_prompts import sample

        draw_picture(picture, lambda name: sample(record, number, name=name))
    return 0


def _print(record: RunRecord, number: int) -> None:
    from rich.markup import escape
    from rich.text import Text

    from specbench.report.console import terminal
    from specbench.report.marked_passes import count, lines

    console = terminal(soft_wrap=False)
    prompt, summary = record["prompts"][number], record["summary"]
    rows = lines(record, prompt, max(40, console.width - 5))

    def marked(text: str, kind: str) -> str:
        return text if console.color_system else MARKS[kind].format(text)

    said = " (simulated)" if summary.get("simulated") else ""
    if summary.get("accept", "exact") != "exact":
        said += f", {summary['accept']}" + (" (lossy)" if summary["lossy"] else "")
    console.print(
        f"[bold]{escape(summary['target'])}[/bold] with draft [bold]{escape(summary['draft'])}[/bold]{said}, "
        f"T={summary['temperature']:g}, {_drafted(summary)}, "
        f"prompt {number + 1} of {len(record['prompts'])}: {count(prompt)}",
        markup=True,
        soft_wrap=True,
    )
    console.print(Text(prompt["prompt"], style="italic"), soft_wrap=True)
    for index, line in enumerate(rows, 1):
        text = Text().append(f"{index:>3}  {line.before}", "dim")
        for piece in line.pieces:
            bare = piece.text.lstrip(" ")
            text.append(" " * (len(piece.text) - len(bare))).append(marked(bare, piece.kind), STYLES[piece.kind])
        console.print(text, soft_wrap=True)
    key = Text("     ")
    for kind, words in WORDS.items():
        key.append(marked(words, kind), STYLES[kind]).append("   ")
    console.print(key, soft_wrap=True)


def _drafted(summary: Summary) -> str:
    """The gamma of a run, or its tree."""
    tree = summary.get("tree")
    return f"tree {tree}" if tree else f"γ={summary['gamma'] or summary.get('gamma_requested')}"


def _print_tree(record: RunRecord, number: int, chosen: int | None) -> None:
    """The tree of one pass, if the run drafted trees."""
    from rich.text import Text

    from specbench.report.console import terminal
    from specbench.report.marked_passes import telling_pass, tree_of_pass

    prompt = record["prompts"][number]
    passes = len(prompt["speculative"].passes)
    if chosen is not None and not 1 <= chosen <= passes:
        raise UserError(f"--tree {chosen}: this prompt has passes 1 to {passes}")
    shown = telling_pass(prompt) if chosen is None else chosen - 1
    if shown is None:
        return
    console = terminal(soft_wrap=False)
    a_pass = prompt["speculative"].passes[shown]
    said = f"the tree of pass {shown + 1}: {a_pass.drafted} nodes, {a_pass.accepted} accepted"
    twigs = tree_of_pass(record, prompt, shown)  # none is an error, before anything is said of it
    console.print(Text(f"\n     {said}", "bold"), soft_wrap=True)
    for twig in twigs:
        style = STYLES.get(twig.kind, "dim")
        mark = "{}" if console.color_system else MARKS.get(twig.kind, "({})")
        text = mark.format(twig.text) if twig.kind != "accepted" else f"{twig.text} ✓"
        console.print(Text("     ").append(twig.branches, "dim").append(text, style), soft_wrap=True)
    if not console.color_system:
        console.print("     token ✓ accepted, -token- tested and rejected, +token+ from the target, (token) not tested")
