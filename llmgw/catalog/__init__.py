"""The catalog: what should be served and how. Files in, one immutable `Catalog` out, or every problem at once.

`spec` are the values. `source` and `git` find out what there is to load, `watch` follows it. `load` judges it:
`yamldoc` the text, `schemas` each document's shape, `rules` what holds across them. `live` holds the one in force.
"""
