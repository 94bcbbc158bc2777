"""Fused kernels, one a file: what they compute, where they apply, and the eager reference."""

from pypm.moved import install

install(__name__)
