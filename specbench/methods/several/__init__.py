"""Several drafts, in turn or in one tree, as a draft."""
