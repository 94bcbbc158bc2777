"""Legality: the checks of a match and of its replacement."""
