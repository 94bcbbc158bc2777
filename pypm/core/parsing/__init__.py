"""Syntax trees of the text syntax, and the constants in them."""
