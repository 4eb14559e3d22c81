"""Whether a server's completions come from the target."""
