"""Make the summaries of the kept records anew from their raw prompts, with the code as it is now.

    python tools/summaries_again.py [RESULTS]       RESULTS: the folder that has kept/; default: results

Tables, figures and pages read a record's summary. If its definition changed, a record that cannot be measured again,
as of a GPU, agrees with the others after this. Its times stay as they were measured.
"""

import sys

from specbench.analysis.summary import resummarised
from specbench.records import store
from specbench.records.catalog import kept_files, kept_folder
from specbench.records.keeping import compact, write_copy


def main(results: str = "results") -> int:
    """Returns how many copies changed."""
    changed = 0
    for file in kept_files(results):
        made = compact(resummarised(store.read(file)))
        if made.content != file.read_bytes():
            write_copy(file, made)
            changed += 1
    print(f"{kept_folder(results)}: {changed} summaries changed")
    return changed


if __name__ == "__main__":
    main(*sys.argv[1:])
