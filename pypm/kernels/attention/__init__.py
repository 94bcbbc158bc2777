"""Attention: fused kernels of torch, two products, and scores that are given as programs."""

from pypm.kernels.attention.cache import attention_over_cache, unsuited
from pypm.kernels.attention.dense import (
    FUSED,
    attention,
    products,
    reference,
    unsupported,
)
from pypm.kernels.paged import PagedCache

__all__ = [
    "FUSED",
    "PagedCache",
    "attention",
    "attention_over_cache",
    "products",
    "reference",
    "unsuited",
    "unsupported",
]
