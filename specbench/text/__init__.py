"""Text and tokens: a tokenizer as a vocabulary, one vocabulary in the tokens of another, and processed logits."""
