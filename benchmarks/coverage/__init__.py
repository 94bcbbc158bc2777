"""Attention sites over a corpus of models: those there are, those found, and what is computed."""
