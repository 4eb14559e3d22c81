"""The keys of a run: typed schemas and range checks."""
