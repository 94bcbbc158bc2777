"""Whether a match may be replaced, and by what."""
