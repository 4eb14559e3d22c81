"""Hydra's heads (Ankner et al. 2024), as a draft."""
