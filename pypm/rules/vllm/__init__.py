"""Fusions that vLLM enumerates, over its operators: norms, activations and heads.

`pypm.integrations.vllm` runs them. The kernels are vLLM's: a rule declines where it has none.
"""

from pypm import RuleSet
from pypm.rules.vllm.activations import silu_and_mul_in_groups, silu_and_mul_static
from pypm.rules.vllm.attention import attention_packed, attention_static
from pypm.rules.vllm.collectives import (
    all_reduce_add_norm,
    all_reduce_last_norm,
    all_reduce_norm,
    last_norm_of_own_rows,
    norm_and_sum_of_own_rows,
    norm_of_own_rows,
    own_rows,
)
from pypm.rules.vllm.four_bits import add_rms_norm_packed, silu_and_mul_packed
from pypm.rules.vllm.heads import heads_normed_and_turned
from pypm.rules.vllm.norms import (
    add_rms_norm_by_rows,
    add_rms_norm_in_groups,
    add_rms_norm_static,
    rms_norm_by_rows,
    rms_norm_in_groups,
    rms_norm_static,
)

RULES = RuleSet(
    (
        add_rms_norm_static,
        add_rms_norm_by_rows,
        add_rms_norm_in_groups,
        add_rms_norm_packed,
        rms_norm_static,
        rms_norm_by_rows,
        rms_norm_in_groups,
        silu_and_mul_static,
        silu_and_mul_in_groups,
        silu_and_mul_packed,
        heads_normed_and_turned,
    ),
    "vllm",
)
"""Rules with a residual come first: the others match a part of what these do."""
ATTENTION = RuleSet((attention_static, attention_packed), "attention of vLLM")
"""Attention that writes eight bits, or four. Opt-in: a graph does not tell which backend of vLLM it
is for, and not all of them can.
"""
ALL_REDUCE = RuleSet(
    (all_reduce_add_norm, all_reduce_last_norm, all_reduce_norm), "all-reduces of vLLM"
)
"""All-reduce, residual and norm by FlashInfer's kernel. Opt-in: it needs the workspace that vLLM
makes with `fuse_allreduce_rms`, and vLLM's own pass comes first.
"""
SEQUENCE = RuleSet(
    (norm_and_sum_of_own_rows, last_norm_of_own_rows, norm_of_own_rows, own_rows),
    "sequence parallelism of vLLM",
)
"""Norms of each process's own rows, between a reduce-scatter and an all-gather. Opt-in: it is for
graphs that vLLM does not cut at attention, and for numbers of tokens that the processes divide.
"""
