"""Torch's operators: their schemas, the targets that call them, their effects."""
