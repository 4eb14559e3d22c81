"""Whether decoding was lossless."""
