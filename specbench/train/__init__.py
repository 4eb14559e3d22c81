"""Training the models that ship and the paper's pairs, on `transformers`' own Trainer classes.

A recipe (`conf/recipe/*.yaml`, typed by `recipe_schema.Recipe`) goes in; `from_pretrained` loads the result.
Independent of the command line, of decoding, and of how a speedup is measured.
"""
