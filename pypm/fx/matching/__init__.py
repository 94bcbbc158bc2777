"""Matches of rules in a graph."""
