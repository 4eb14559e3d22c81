"""`specbench report`: all tables and figures as one HTML page that needs no network."""

from pathlib import Path

from specbench.cli.options import dashed, options


def main(argv: list[str]) -> int:
    parser = options("report", "All tables and figures as one self-contained HTML page. No model is loaded.")
    parser.add_argument("--output", metavar="FILE", help="default report.html in the results folder")
    arguments = parser.parse_args(dashed(argv))
    from specbench.report.page import write
    from specbench.report.records import Records

    file = Path(arguments.output or Path(arguments.results) / "report.html")
    write(Records(arguments.results), file)
    print(file)
    return 0
