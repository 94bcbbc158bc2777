"""What a call of `rewrite` did, as values and as text."""
