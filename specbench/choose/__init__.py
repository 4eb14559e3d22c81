"""Which draft, which gamma: alpha of many drafts, the costs of their passes, a ranking, its proof, its errors.

Knows models only through `runs.build` and proves a ranking through `runs.execute`. Does not print.
"""
