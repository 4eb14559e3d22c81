"""PaSS: the target reads look-ahead embeddings (Monea et al. 2023), as a draft."""
