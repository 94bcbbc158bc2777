"""Samples of a rule's own pattern: terms, shapes and tensors."""
