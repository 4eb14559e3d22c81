"""Acceptance rules, one per file: its keys, its name in tables, its verdict, and its formulas.

The files import torch when it is used (`deferred`), since the command line reads their keys without it.
"""
