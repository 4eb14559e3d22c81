"""The models of a run, loaded on its device."""
