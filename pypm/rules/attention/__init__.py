"""Attention in every spelling, replaced by `scaled_dot_product_attention`.

The patterns match softmax(q k^T scale + mask) v. Scales may be on q, k or the scores. Masks may be
added or filled in. There may be any number of both, in any order. Heads of keys and values may be
repeated for groups of query heads.
"""

from pypm import RuleSet
from pypm.rules.attention.block_sparse import attention_by_blocks, called_attention_by_blocks
from pypm.rules.attention.decoding import (
    called_decoding,
    called_decoding_without_mask,
    decoding,
    decoding_without_mask,
)
from pypm.rules.attention.differential import (
    differential_attention,
    stacked_differential_attention,
)
from pypm.rules.attention.pages import called_paged_attention, paged_attention
from pypm.rules.attention.rules import (
    attention_by_products,
    called_attention_by_products,
    sdpa,
    sdpa_with_dropout,
)
from pypm.rules.attention.sinks import sdpa_with_sinks
from pypm.rules.attention.widths import called_sdpa_of_two_widths, sdpa_of_two_widths

RULES = RuleSet(
    (
        sdpa,
        sdpa_with_sinks,
        sdpa_of_two_widths,
        called_sdpa_of_two_widths,
        differential_attention,
        stacked_differential_attention,
        attention_by_products,
        attention_by_blocks,
        called_attention_by_products,
        called_attention_by_blocks,
        decoding,
        decoding_without_mask,
        called_decoding,
        called_decoding_without_mask,
    ),
    "attention",
)
"""To the fused kernel; and where they are measured to be faster, to two products, or to the blocks
that masks leave. A step of decoding becomes an operator that reads the visible keys alone, once.
"""
WITH_DROPOUT = RuleSet((sdpa, sdpa_with_dropout), "attention with dropout")
"""`RULES`, and attention of a model in training that drops weights. Opt-in.

The kernel samples the dropped weights anew, so a seed no longer gives the same results. Among the
stages of `torch.compile` it is for `pre_grad`: later, the backward pass uses the dropout mask, so
that the mask has to stay. It gains nothing on CPUs, where torch computes it by plain products.
"""
PAGED = RuleSet((paged_attention, called_paged_attention), "attention over pages")
"""Attention over keys and values that a page table gathers, by the operator for pages: on CPUs.
Opt-in.

How long the operator takes depends on the lengths, and a choice that measures does not know these:
apply it with `choose=every`.
"""
