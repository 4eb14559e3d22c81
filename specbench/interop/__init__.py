"""Other engines: their acceptance numbers, their settings, and whether their completions come from the target."""
