"""Attention in every spelling, to `scaled_dot_product_attention`.

softmax(q k^T scale + mask) v, with scales on q, k or the scores, masks added or filled in, any
number of either in any order, and key and value heads repeated for groups of query heads.
"""

from pypm import RuleSet
from pypm.rules.attention.rules import sdpa, sdpa_with_dropout

RULES = RuleSet((sdpa,), "attention")
WITH_DROPOUT = RuleSet((sdpa, sdpa_with_dropout), "attention with dropout")
"""Also where a model in training drops weights: the kernel draws other ones than the model did.

By name only, since results are no longer those of the same seed. Of `torch.compile`'s stages it is
for `pre_grad`: later on, the backward pass uses the mask, so that it cannot go. There is no gain on
the CPU, where torch drops weights in plain products only.
"""
