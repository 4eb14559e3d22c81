"""From key=value words to typed configs, composed by Hydra from `conf/`. The only room that knows Hydra."""
