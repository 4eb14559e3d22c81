"""specbench: measure speculative decoding on your models and your text.

The rooms, top first; imports run downward only (checked by `make check`):
`cli` > `choose` > `bench | run | report` > `measure | train` > `decoding` >
`drafts | acceptance | gamma | tasks | store` > `models | sampling | quality | config | theory`.
ARCHITECTURE.md walks through them.
"""

__version__ = "0.1.0"
