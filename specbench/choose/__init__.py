"""Choice of draft and gamma: alpha of many drafts, the costs of their passes, a ranking, its verification and errors.

Models are built by `experiment.run_parts`, and rankings are verified by `experiment.runner.execute`. Nothing is printed
here.
"""
