"""Explanations of why a rule does not match at a node."""
