"""Operators of variation: they change a candidate, and need not know anything of the search."""
