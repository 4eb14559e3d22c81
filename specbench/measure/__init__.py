"""Numbers from decoded prompts: alpha, c, verification cost, walltime, intervals, losslessness, where time goes.

Raw measurements come in; means are made here and nowhere else.
"""
