"""Tables and figures: what the paper printed, what its formulas say, and what our records measured.

Reads records and `experiments/`. Never touches a model and never imports torch, so that everything is drawn again in
seconds.
"""
