"""Attention: fused kernels of torch, two products, and scores that are given as programs."""

from pypm.kernels.attention.dense import (
    FUSED,
    attention,
    products,
    reference,
    unsupported,
)

__all__ = ["FUSED", "attention", "products", "reference", "unsupported"]
