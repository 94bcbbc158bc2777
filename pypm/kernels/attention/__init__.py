"""Attention: fused kernels of torch, two products, and scores that are given as programs."""

from pypm.kernels.attention.dense import (
    FUSED,
    attention,
    products,
    reference,
    unsupported,
)
from pypm.kernels.paged import PagedCache

__all__ = ["FUSED", "PagedCache", "attention", "products", "reference", "unsupported"]
