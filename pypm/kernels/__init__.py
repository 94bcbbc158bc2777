"""Fused kernels, one a file: what they compute, where they apply, and the eager reference."""
