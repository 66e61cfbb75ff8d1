"""Weights on disk: what a source is called, how it is fetched, what may be removed.

Fetched bytes live in cache entries, one directory per canonical source; local files are served in place and are
never copied, cached or collected.
"""
