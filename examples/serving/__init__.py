"""Continuous batching over pages: a server for a Llama, and what it gains over `generate`."""
