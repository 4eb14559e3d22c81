"""Multi-token prediction: heads that lie in a target's own checkpoint."""
