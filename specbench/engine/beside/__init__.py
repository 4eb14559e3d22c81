"""A network beside the target: a draft's own layers, declared once and run in two ways.

`declared` says what a network computes of its entries and what it caches of them. `eager` runs that as it is.
`captured` runs the same functions as captured steps in the engine of the target, which are compared with the former
before they are used. Sessions of both have the same methods (`EntrySession`), so that a draft is written once.
"""
