"""The calculus: terms, patterns, guards, rules, their checks and the reference machine."""
