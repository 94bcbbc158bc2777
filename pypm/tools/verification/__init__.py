"""Rules checked: samples of their own patterns, rewritten by the real pass, and run beside."""
