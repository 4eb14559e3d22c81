"""Which draft, which gamma: alpha of many drafts at once, what their passes cost, a ranking, its proof, and its
prediction errors.

Knows models only through `run.build` and proves a ranking through `run.execute`. Does not print.
"""
