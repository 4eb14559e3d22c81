"""N-grams of the target's own guesses, as a draft."""
