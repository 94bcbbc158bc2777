"""A linear layer and the elementwise operators after it, as one generated kernel.

For GPUs, at any hook. The operators may be a bias, an activation, a scale, a mask, a residual or a
cast, in any order and number. Their operands may have the whole shape, or be a row, a column or one
element. The kernel computes them in float32 on the accumulator and rounds the result once.
`pypm.kernels.support.lowering` lists the operators. The pack is not in `inference`: it has not been
measured against cuBLAS; `python -m benchmarks.gpu.gemm` measures it.
"""

import math

import torch

from pypm import RuleSet, decline, let, op_var, pattern, rule
from pypm.fx import aten, metadata
from pypm.kernels.gemm import gemm_epilogue as kernel
from pypm.kernels.gemm import unsupported
from pypm.kernels.support.devices import off_gpu
from pypm.kernels.support.lowering import lowered
from pypm.rules.vocabulary.products import PlainLinear
from pypm.rules.vocabulary.shapes import NoOp, Reshape


@pattern
def SameRows(x):  # the same rows, maybe in other batch dimensions
    y = Reshape(x) | NoOp(x)
    assert y.shape[-1] == x.shape[-1]
    return y


@pattern
def Product(x, w, turned):
    return PlainLinear(x, w, _, turned) | SameRows(Product(x, w, turned))


@pattern
def Product(x, w, turned):
    let(turned=False)
    assert w.rank == 2
    return aten.matmul(x, w)


@pattern(through=SameRows)
def Chain(x, w, turned):
    f = op_var(tag="pointwise")
    return f(..., Chain(x, w, turned), ...)


@pattern
def Chain(x, w, turned):
    return Product(x, w, turned)


@pattern(through=SameRows)
def Followed(x, w, turned):
    f = op_var(tag="pointwise")
    return f(..., Chain(x, w, turned), ...)


@pattern
def Epilogue(x, w, turned, shape):
    y = Followed(x, w, turned)
    let(shape=y.shape)
    return y


@rule(Epilogue, absorb="pointwise", unless=off_gpu)
def product_and_epilogue(x, w, turned, shape, match):
    found = lowered(match.region.nodes)
    if isinstance(found, str):
        return decline(found)
    dtype = metadata(match.root).dtype
    if not found.follows and dtype == x.dtype:
        return decline("nothing follows the product")
    if not isinstance(x, torch.Tensor) and not all(isinstance(n, int) for n in shape):
        return decline("the sizes are not known while tracing")
    given = dict(zip(match.region.inputs, match.inputs, strict=True))
    *sizes, k = x.shape
    rows = math.prod(sizes)
    sides = [in_rows(given[node], rows if has_rows else 1) for node, has_rows in found.sides]
    a, b = x.reshape(rows, k), w.t() if turned else w
    reason = unsupported(a, b, sides)
    if reason is not None:
        return decline(reason)
    return kernel(a, b, sides, found.program, dtype).view(shape)


def in_rows(side, rows):
    """Return a tensor in the two dimensions in which the kernel takes it."""
    return side.reshape(rows, (1, *side.shape)[-1])


RULES = RuleSet((product_and_epilogue,), "gemm")
