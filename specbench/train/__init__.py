"""Training the models that ship and the paper's pairs, on `transformers`' own Trainer classes.

A recipe (`conf/recipe/*.yaml`, typed by `recipe_schema.Recipe`) goes in; what comes out, `from_pretrained` loads.
Independent of the command line, of decoding, and of how a speedup is measured.
"""
