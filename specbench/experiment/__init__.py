"""One run: from a checked config to a record on disk."""
