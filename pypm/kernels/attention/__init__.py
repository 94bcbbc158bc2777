"""Attention: fused kernels of torch, two products, and scores that are given as programs."""

from pypm.kernels.attention.decoding import attention_over_cache, unsuited
from pypm.kernels.attention.dense import (
    FUSED,
    attention,
    attention_with_sinks,
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
    "attention_with_sinks",
    "products",
    "reference",
    "unsuited",
    "unsupported",
]
