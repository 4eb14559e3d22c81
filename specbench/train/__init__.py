"""Training the models that ship and the paper's pairs, on `transformers`' own Trainer classes.

A recipe (`conf/recipe/*.yaml`, typed by `schema.Recipe`) goes in; a folder that `from_pretrained` loads comes out.
This room knows nothing of the command line, of decoding, or of how a speedup is measured.
"""
