"""Attention over a cache in pages: the cache, the plan of a step, the operator of a layer."""

from pypm.kernels.paged.cache import CacheError, PagedCache
from pypm.kernels.paged.operator import attention_by_table, paged_attention, unsupported
from pypm.kernels.paged.plans import PagedPlan, plan

__all__ = [
    "CacheError",
    "PagedCache",
    "PagedPlan",
    "attention_by_table",
    "paged_attention",
    "plan",
    "unsupported",
]
