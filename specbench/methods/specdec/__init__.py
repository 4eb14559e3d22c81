"""SpecDec's parallel decoder (Xia et al. 2023), as a draft."""
