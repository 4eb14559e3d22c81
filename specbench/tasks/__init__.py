"""Where prompts and references come from: the hub, your own rows, or the small sets that ship.

A `Task` streams `Example`s and training text. It handles fields and files, and is independent of tokens and models.
"""
