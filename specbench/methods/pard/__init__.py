"""PARD: a model that drafts all tokens of a proposal in one forward pass, as a draft."""
