"""Patterns as formulas: ways through alternates, and values of names."""
