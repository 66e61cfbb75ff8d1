"""Bars for downloads, on stderr."""

from rich.progress import BarColumn, ProgressColumn, TextColumn


def columns() -> tuple[ProgressColumn, ...]:
    """Each task has a field `told`: how far it is, how fast, and how long it takes yet, as its node reckons it. (rich's
    own speed would count what an earlier attempt brought.)"""
    named, told = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[told]}"))
    return (named, BarColumn(), told)
