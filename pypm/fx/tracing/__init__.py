"""Replacements: a rule's body traced, or built from a template."""
