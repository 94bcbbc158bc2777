"""Patterns that several packs share, one for each computation that graphs write in several ways."""
