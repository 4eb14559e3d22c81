"""N-gram counts, or none at all, as a draft."""
