"""Why a pattern does not match: the furthest attempt, and the reason it ended."""
