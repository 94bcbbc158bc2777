"""Benchmarks against other rewriters: `python -m benchmarks`."""
