"""From a name in the config to weights in memory."""
