"""EAGLE and EAGLE-3 (Li et al. 2024, 2025), as a draft."""
