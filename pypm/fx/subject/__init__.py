"""A graph as the subject of matching: its calls, terms and memory."""
