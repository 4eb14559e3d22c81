"""Several drafts in one tree, as a draft."""
