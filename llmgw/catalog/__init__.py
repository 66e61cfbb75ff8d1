"""The catalog: what should be served and how. Files in, one immutable `Catalog` out, or every problem at once.

`spec` are the values; `load` judges bytes; `rules` judges across files; `git` and `watch` find out what there is
to load; `live` holds the one in force.
"""
