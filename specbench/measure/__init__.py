"""Numbers from decoded prompts: alpha, c, verify cost, walltime, intervals, and whether the texts agree.

Raw measurements come in; means are made here and nowhere else.
"""
