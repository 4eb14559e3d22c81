"""`specbench figures`: the paper's figures and ours, drawn from the records on disk."""

from pathlib import Path

from specbench.cli.options import add_fewest_prompts, listed, options, to_stderr


def main(argv: list[str]) -> int:
    """Run `specbench figures` with the words `argv`.

    Raises:
        UserError: a word that cannot be read, or a file that is not what the verb reads.
    """
    parser = options("figures", "The paper's figures with our measured points. No model is loaded.")
    known = "figure1 ... figure5, gamma, position, beta, cost, beyond, waterfall, gap, trees, verify, batches"
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{known} (default all)")
    parser.add_argument("--format", default="svg,png", help="svg, pdf, png; several with commas (default svg,png)")
    parser.add_argument("--output", metavar="FOLDER", help="default figures/ in the results folder")
    add_fewest_prompts(parser)
    arguments = parser.read(argv)
    from specbench.records.frame import Records
    from specbench.records.kept import drawing_folder
    from specbench.report.console import counted
    from specbench.report.figure import FORMATS, save, write_index
    from specbench.report.figures import FIGURES, build

    forms = listed(arguments.format, FORMATS, "--format")
    records = Records(arguments.results, arguments.min_prompts)
    names = arguments.names or list(FIGURES)
    with counted(2 * len(names) if len(names) > 1 else 0, "figures, drawn and written") as step:
        figures = build(names, records, step)
        folder = drawing_folder(records, Path(arguments.output or records.results / "figures"), to_stderr)
        for drawn in figures:
            step()
            for file in save(drawn, folder, forms):
                print(file)
    if not arguments.names:
        print(write_index(figures, folder, forms))
    return 0
