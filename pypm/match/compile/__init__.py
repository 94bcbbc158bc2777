"""Compilation of patterns to steps."""
