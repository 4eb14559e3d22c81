"""specbench: measure speculative decoding on your models and your text.

The rooms, top first; imports run downward only (checked by `make check`):
`cli` > `choose` > `bench | run | report` > `measure | train` > `decoding | beam` > `drafts | gamma | tasks` >
`records` > `models | acceptance | quality` >
`sampling | config | theory | trees | stats | environment | hub | files | markdown` > `errors`.
ARCHITECTURE.md walks through them.
"""

__version__ = "0.1.0"
