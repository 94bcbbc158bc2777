"""Tile programs of families of computations: attention, experts, rows without products."""
