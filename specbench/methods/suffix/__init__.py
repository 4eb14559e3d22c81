"""Tokens that most often followed the last tokens in this prompt and in earlier completions, as a draft."""
