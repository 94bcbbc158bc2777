"""Rules that can never fire."""
