"""Rewrites to look at: one page without network, or a picture."""
