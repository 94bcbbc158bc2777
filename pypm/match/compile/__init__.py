"""Patterns compiled to steps."""
