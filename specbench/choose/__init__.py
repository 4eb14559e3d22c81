"""Which draft, which gamma: alpha of many drafts at once, what their passes cost, a ranking, its proof, and its
prediction errors.

Knows models only through `runs.build` and proves a ranking through `runs.execute`. Does not print.
"""
