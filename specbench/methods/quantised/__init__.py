"""The target with its weights in fewer bits, as a draft."""
