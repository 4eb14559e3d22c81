"""Typed configs from key=value words, composed by Hydra from `conf/`. The only room that knows Hydra."""
