"""Algorithm 1 of the paper: the interface of a draft, acceptance rules, decoding, gamma, trees and beams."""
