"""Several drafts in turn, as a draft."""
