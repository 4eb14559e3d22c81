"""DFlash (Chen et al. 2026), as a draft: a block of tokens in one forward pass of a small network."""
