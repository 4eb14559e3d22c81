"""Acceptance rules: how many draft tokens are accepted, and which token follows. One rule per file."""
