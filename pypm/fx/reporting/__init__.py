"""Reports of a call of `rewrite`, as values and as text."""
