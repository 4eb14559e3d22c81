"""Blockwise heads (Stern et al. 2018), as a draft."""
