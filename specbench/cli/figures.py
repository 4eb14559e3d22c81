"""`specbench figures`: the paper's figures and ours, drawn from the records on disk."""

from pathlib import Path

from specbench.cli.options import dashed, listed, options


def main(argv: list[str]) -> int:
    parser = options("figures", "The paper's figures with our measured points. No model is loaded.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="figure1 ... figure5, gamma, position, beta, cost, beyond"
    )
    parser.add_argument("--format", default="svg,png", help="svg, pdf, png; several with commas (default svg,png)")
    parser.add_argument("--output", default="results/figures", metavar="FOLDER", help="default results/figures")
    arguments = parser.parse_args(dashed(argv))
    from specbench.records.frame import Records
    from specbench.report.figure import FORMATS, save, write_index
    from specbench.report.figures import build

    forms = listed(arguments.format, FORMATS, "--format")
    figures = build(arguments.names, Records(arguments.results))
    folder = Path(arguments.output)
    for drawn in figures:
        for file in save(drawn, folder, forms):
            print(file)
    if not arguments.names:
        print(write_index(figures, folder, forms))
    return 0
