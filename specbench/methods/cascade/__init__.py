"""A model draft with a draft of its own, as a draft."""
