"""Medusa's heads (Cai et al. 2024), as a draft."""
