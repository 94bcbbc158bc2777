"""Models of the corpus at real widths: eager, compiled, with PyPM, with SDPA written by hand."""
