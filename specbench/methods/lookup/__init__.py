"""Tokens copied from the prompt, as a draft."""
