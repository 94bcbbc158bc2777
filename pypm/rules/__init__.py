"""The rule library: each module exposes its rules as `RULES`."""
