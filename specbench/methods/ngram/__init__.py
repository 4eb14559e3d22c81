"""N-gram counts, as a draft."""
