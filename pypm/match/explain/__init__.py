"""Explanations of failed matches: the attempt that came furthest, and the cause that ended it."""
