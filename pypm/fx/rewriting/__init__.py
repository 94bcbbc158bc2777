"""Rewriting a graph by rules until none of them matches."""
