"""Warnings about rules that can never fire."""
