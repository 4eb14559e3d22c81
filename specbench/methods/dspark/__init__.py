"""DSpark (2607.05147), as a draft: DFlash's network, whose tokens are drawn one after another."""
