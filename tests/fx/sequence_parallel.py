"""Tensor-parallel layers as sequence-parallel ones, and fused all-reduces, by declared operators.

It is a module of its own because two processes import it.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # defines operators
import torch.distributed._symmetric_memory as symmetric_memory

from pypm import decline, pattern, rule, var
from pypm.fx import Namespace, aten, declare

__all__ = ["EPS", "SEQUENCE", "add_and_norm", "fused", "gathered", "layers", "norm", "reduced"]

c10d, symmetric = torch.ops._c10d_functional, torch.ops.symm_mem
collective = Namespace("_c10d_functional")
EPS = 1e-6


# Torch has these for GPUs; `_fallback` is what they do elsewhere.
for _name in ("fused_all_gather_matmul", "fused_matmul_reduce_scatter"):
    _fallback = getattr(symmetric_memory, f"_{_name}_fallback")
    torch.library.impl(f"symm_mem::{_name}", "CPU", _fallback)


def group_of(name: str) -> dist.ProcessGroup:
    return dist.distributed_c10d._resolve_process_group(name)


def reduced(x: torch.Tensor, operation: str = "sum", group: str = "0") -> torch.Tensor:
    return c10d.wait_tensor(c10d.all_reduce(x, operation, group))


def scattered(x: torch.Tensor, operation: str, ranks: int, group: str) -> torch.Tensor:
    return c10d.wait_tensor(c10d.reduce_scatter_tensor(x, operation, ranks, group))


def gathered(x: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    return c10d.wait_tensor(c10d.all_gather_into_tensor(x, ranks, group))


def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * w


# --- one operator for an all-reduce, the residual and a norm -------------------------------------


@torch.library.custom_op("pypm_collectives::add_and_norm", mutates_args=())
def add_and_norm(
    x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, op: str, group: str
) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.clone()
    dist.all_reduce(y, dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX, group_of(group))
    y += r
    return y, norm(y, w)


@add_and_norm.register_fake
def _(x, r, w, op, group):
    return torch.empty_like(x), torch.empty_like(x)


def as_collectives(x, r, w, op, group):
    y = reduced(x, op, group) + r
    return y, norm(y, w)


declare(torch.ops.pypm_collectives.add_and_norm, issues=as_collectives)


@pattern
def Reduced(x, op, group):
    return collective.wait_tensor(collective.all_reduce(x, op, group))


@pattern
def Norm(y, w):
    return y * aten.rsqrt(aten.mean(aten.pow(y, 2), [-1], True) + EPS) * w


@pattern
def ReducedNorm(x, r, w, op, group):
    y = r + Reduced(x, op, group)
    return y, Norm(y, w)


@rule(ReducedNorm, communicates="together")
def fused(x, r, w, op, group):
    return torch.ops.pypm_collectives.add_and_norm(x, r, w, op, group)


# --- sequence parallelism ------------------------------------------------------------------------


@rule(ReducedNorm, communicates="together")
def in_parts(x, r, w, op, group):
    ranks, rank = group_of(group).size(), group_of(group).rank()
    if x.shape[0] % ranks:
        return decline("the rows cannot be divided among the processes")
    rows = x.shape[0] // ranks
    y = r[rank * rows : (rank + 1) * rows] + scattered(x, op, ranks, group)
    return gathered(y, ranks, group), gathered(norm(y, w), ranks, group)


@pattern
def OwnPart(x, start, end, group):
    ranks = var()
    y = collective.wait_tensor(collective.all_gather_into_tensor(x, ranks, group))
    return aten.slice(y, 0, start, end)


@rule(OwnPart, communicates="together")
def own_part(x, start, end, group):
    first = group_of(group).rank() * x.shape[0]
    return x if (start, end) == (first, first + x.shape[0]) else decline("another part")


SEQUENCE = [in_parts, own_part]


# --- products fused with collectives, by torch's operators ---------------------------------------


@pattern
def GatheredProduct(x, w, group):
    ranks = var()
    y = collective.wait_tensor(collective.all_gather_into_tensor(x, ranks, group))
    return aten.mm(y, w)


@rule(GatheredProduct, communicates="together")
def gather_and_multiply(x, w, group):
    return symmetric.fused_all_gather_matmul(x, [w], 0, group, return_A=False)[1][0]


@pattern
def ScatteredProduct(x, w, op, group):
    ranks = var()
    y = aten.mm(x, w)
    return collective.wait_tensor(collective.reduce_scatter_tensor(y, op, ranks, group))


@rule(ScatteredProduct, communicates="together")
def multiply_and_scatter(x, w, op, group):
    return symmetric.fused_matmul_reduce_scatter(x, w, op, 0, group)


FUSED_PRODUCTS = [gather_and_multiply, multiply_and_scatter]


def layers(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """Return the output of layers whose matrices are parts, one of each process."""
    (*matrices, w), y = weights, norm(x, weights[-1])
    for up, down in zip(matrices[::2], matrices[1::2], strict=True):
        x = x + reduced((y @ up).relu() @ down)
        y = norm(x, w)
    return y
