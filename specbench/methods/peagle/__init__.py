"""P-EAGLE: EAGLE-3's layer, whose tokens of a proposal all come from one forward pass."""
