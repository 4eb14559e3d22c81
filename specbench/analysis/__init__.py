"""Numbers from decoded prompts and records."""
