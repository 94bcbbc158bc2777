"""All-reduce and RMSNorm of tensor-parallel layers: by one kernel, or by each process's own rows.

A kernel of FlashInfer that reduces by itself meets only itself in other processes, so these rules
are applied to a whole graph or not at all. They take the group of tensor parallelism alone: the
operators that replace the all-reduce know no other.
"""

from collections.abc import Callable, Mapping
from importlib import import_module

import torch

from pypm import decline, pattern, rule
from pypm.fx import Namespace, declare, is_known_scalar, known_to_hold
from pypm.rules.vllm.norms import MISFIT, Norm, NormOfSum, Sum, fit
from pypm.rules.vllm.operators import VLLM, fused, last_reader

COLLECTIVE = Namespace("_c10d_functional")
STATE = "vllm.distributed.parallel_state"
KERNEL = "flashinfer_trtllm_fused_allreduce_norm"
WORKSPACE = "_fi_ar_workspace"
"""The name under which vLLM keeps the memory of the kernel, once it has made it."""

# --- what vLLM's operators issue -----------------------------------------------------------------


def named_by_torch(group):
    """Return torch's name of one of vLLM's groups; other groups keep the name that they have."""
    own = import_module(STATE).get_tp_group()
    return own.device_group.group_name if group == own.unique_name else group


def reduced(tensor, group_name):
    """Compute vLLM's `all_reduce` by collectives of torch."""
    c10d = torch.ops._c10d_functional
    return c10d.wait_tensor(c10d.all_reduce(tensor, "sum", named_by_torch(group_name)))


def reduced_in_parts(tensor, dim, world_size, group_name):
    """Compute vLLM's `reduce_scatter` by collectives of torch."""
    c10d, first = torch.ops._c10d_functional, tensor.movedim(dim, 0).contiguous()
    group = named_by_torch(group_name)
    part = c10d.wait_tensor(c10d.reduce_scatter_tensor(first, "sum", world_size, group))
    return part.movedim(0, dim)


def gathered(tensor, dim, world_size, group_name):
    """Compute vLLM's `all_gather` by collectives of torch."""
    c10d, first = torch.ops._c10d_functional, tensor.movedim(dim, 0).contiguous()
    group = named_by_torch(group_name)
    return c10d.wait_tensor(c10d.all_gather_into_tensor(first, world_size, group)).movedim(0, dim)


def reduced_and_normed(
    allreduce_in, residual, rms_gamma, rms_eps, *_, norm_out=None, weight_bias=0.0, **__
):
    """Compute the norm and the sum of FlashInfer's kernel by a collective of torch."""
    total = reduced(allreduce_in, import_module(STATE).get_tp_group().unique_name) + residual
    return torch.rms_norm(total, rms_gamma.shape, rms_gamma + weight_bias, rms_eps), total


MEANINGS: Mapping[str, Callable[..., object]] = {
    "all_reduce": reduced,
    "reduce_scatter": reduced_in_parts,
    "all_gather": gathered,
    KERNEL: reduced_and_normed,
}


def declare_collectives() -> None:
    """Declare the collectives of those operators of vLLM that are registered by now."""
    for name, meaning in MEANINGS.items():
        if (found := getattr(torch.ops.vllm, name, None)) is not None:
            declare(found, issues=meaning)


# --- all-reduces and norms -----------------------------------------------------------------------


@pattern
def Reduced(x, group):
    return VLLM.all_reduce(x, group)


@pattern
def Reduced(x, group):
    return COLLECTIVE.wait_tensor(COLLECTIVE.all_reduce(x, "sum", group))


@pattern
def ReducedNorm(x, w, eps, group):
    y = Reduced(x, group)
    assert x.rank == 2
    return Norm(y, w, eps), y


@pattern
def ReducedNormAndSum(x, r, w, eps, group):
    y = Reduced(x, group)
    assert x.rank == 2
    return NormOfSum(y, r, w, eps), Sum(y, r, w, eps)


@pattern
def ReducedNormOfSum(x, r, w, eps, group):  # of a last layer, whose sum is not read
    y = Reduced(x, group)
    assert x.rank == 2
    return NormOfSum(y, r, w, eps)


OTHER_GROUP = "the group is not that of tensor parallelism"


def tensor_parallel(group):
    """Return vLLM's group of tensor parallelism if vLLM or torch gave it this name, else None."""
    own = import_module(STATE).get_tp_group()
    return own if group in (own.unique_name, own.device_group.group_name) else None


# --- one kernel ----------------------------------------------------------------------------------


@rule(ReducedNorm, communicates="together", reads=last_reader("x"))
def all_reduce_norm(x, w, eps, group, match):
    return reduced_by_kernel(x, None, w, eps, group, match)


@rule(ReducedNormAndSum, communicates="together", reads=last_reader("x"))
def all_reduce_add_norm(x, r, w, eps, group, match):
    return reduced_by_kernel(x, r, w, eps, group, match)


@rule(ReducedNormOfSum, communicates="together", reads=last_reader("x"))
def all_reduce_last_norm(x, r, w, eps, group, match):
    made = reduced_by_kernel(x, r, w, eps, group, match)
    return made[0] if isinstance(made, tuple) else made


def reduced_by_kernel(x, r, w, eps, group, match):
    """Return the norm of x + r and this sum, or decline. x is reduced first; r may be None.

    The kernel writes the sum into x, and reads r.
    """
    if not hasattr(torch.ops.vllm, KERNEL):
        return decline(f"this vLLM has no kernel `{KERNEL}`")
    if not fit(x, x if r is None else r, w) or x.dtype == torch.float32:
        return decline(f"{MISFIT}; this one takes no 32 bits")
    own = tensor_parallel(group)
    if own is None:
        return decline(OTHER_GROUP)
    tokens = tokens_with_room(x, own.world_size)
    if tokens is None:
        return decline("vLLM has no workspace for the kernel, or a smaller one than the rows take")
    theirs = import_module("vllm.compilation.passes.fusion.allreduce_rms_fusion")
    given = theirs.FlashInferFusedAllReduceParams(own.world_size, tokens)
    code = int(theirs.ar_fusion_patterns.kARResidualRMSNorm)
    declare_collectives()
    x = x.contiguous() if match.reading.value else x.clone(memory_format=torch.contiguous_format)
    r = torch.zeros_like(x) if r is None else r.contiguous()
    made = fused(
        *(KERNEL, x, r, w, eps, own.world_size, given.launch_with_pdl, given.fp32_acc),
        *(tokens, code, torch.empty_like(x), None, None, None, 0.0),
    )
    return made[2], made[0]


def tokens_with_room(x, ranks):
    """Return the largest number of tokens that vLLM compiles this graph for, or None if the kernel
    has no workspace for as many, or x may have more rows.

    Only a workspace counts that one of vLLM's passes has made: to make one is a collective.
    """
    known = import_module("vllm.distributed.device_communicators.flashinfer_all_reduce")
    passes = import_module("vllm.compilation.passes.inductor_pass")
    tokens, workspace = passes.get_pass_context().compile_range.end, getattr(known, WORKSPACE, None)
    rows = x.shape[0]
    if not (rows <= tokens if is_known_scalar(rows) else rows.node.expr.is_Symbol):
        return None
    is_known = workspace is not None and workspace.is_buffer_size_sufficient(
        tp_size=ranks, num_tokens=tokens, hidden_dim=x.shape[-1], dtype=x.dtype
    )
    return tokens if is_known else None


# --- each process for its own rows ---------------------------------------------------------------


@rule(ReducedNorm, communicates="together")
def norm_of_own_rows(x, w, eps, group):
    own = in_rows(x, group)
    if not hasattr(own, "unique_name"):
        return own
    part = torch.ops.vllm.reduce_scatter(x, 0, own.world_size, own.unique_name)
    return all_rows(own, torch.ops.vllm_ir.rms_norm(part, w, eps), part)


@rule(ReducedNormAndSum, communicates="together")
def norm_and_sum_of_own_rows(x, r, w, eps, group):
    return added_in_rows(x, r, w, eps, group)


@rule(ReducedNormOfSum, communicates="together")
def last_norm_of_own_rows(x, r, w, eps, group):
    made = added_in_rows(x, r, w, eps, group)
    return made[0] if isinstance(made, tuple) else made


def added_in_rows(x, r, w, eps, group):
    """Return the norm of x + r and this sum, of whose rows each process computes its own; or
    decline.
    """
    own = in_rows(x, group)
    if not hasattr(own, "unique_name"):
        return own
    part = torch.ops.vllm.reduce_scatter(x, 0, own.world_size, own.unique_name)
    rest = torch.ops.vllm.sequence_parallel_chunk_impl(r)
    return all_rows(own, *torch.ops.vllm_ir.fused_add_rms_norm(part, rest, w, eps))


def in_rows(x, group):
    """Return the group if its processes can share the rows of x, or what `decline` returns."""
    if not hasattr(torch.ops.vllm, "sequence_parallel_chunk_impl"):
        return decline("this vLLM has no operator for a process's own rows")
    own = tensor_parallel(group)
    if own is None:
        return decline(OTHER_GROUP)
    if not known_to_hold(lambda rows: rows % own.world_size == 0, x.shape[0]):
        return decline("the rows cannot be divided among the processes")
    declare_collectives()
    return own


def all_rows(own, *parts):
    """Return tensors of all rows from those of each process's own ones."""
    gather = torch.ops.vllm.all_gather
    return tuple(gather(part, 0, own.world_size, own.unique_name) for part in parts)


@pattern
def OwnRows(x, ranks, group):
    return VLLM.sequence_parallel_chunk_impl(VLLM.all_gather(x, 0, ranks, group))


@rule(OwnRows, communicates="together")
def own_rows(x, ranks, group):
    return x if tensor_parallel(group) is not None else decline(OTHER_GROUP)


declare_collectives()
