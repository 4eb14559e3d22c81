"""Records: the files that runs write, atomically, and that are read back as one table. Independent of models."""
