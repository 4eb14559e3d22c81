"""One of two drafts, chosen before each proposal, as a draft."""
