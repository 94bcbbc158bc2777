"""A linear layer and the elementwise operators behind it, as one kernel that is generated for them.

For GPUs, at any hook. A bias, an activation, a scale, a mask, a residual, a cast, in any order and
number, with tensors of the whole shape, of a row, of a column, or of one element: all of that is
computed in float32 on the accumulator, which is neither stored nor rounded, and the result is
rounded once. `pypm.kernels.support.lowering` has the operators. Not in `inference`: whether the
kernel and what it saves make up for cuBLAS has not been measured; `python -m benchmarks.gpu_gemm`
does.
"""

import math

import torch

from pypm import RuleSet, decline, let, op_var, pattern, rule
from pypm.fx import aten, metadata
from pypm.kernels.gemm import gemm_epilogue as kernel
from pypm.kernels.gemm import unsupported
from pypm.kernels.support.lowering import lowered
from pypm.kernels.support.triton import off_gpu
from pypm.rules.spellings import NoOp, PlainLinear, Reshape


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


@rule(Followed, absorb="pointwise", unless=off_gpu)
def product_and_epilogue(x, w, turned, match):
    found = lowered(match.region.nodes)
    if isinstance(found, str):
        return decline(found)
    root = metadata(match.root)
    if not found.follows and root.dtype == x.dtype:
        return decline("nothing follows the product")
    if not isinstance(x, torch.Tensor) and not all(isinstance(n, int) for n in root.shape):
        return decline("the sizes are not known while tracing")
    given = dict(zip(match.region.inputs, match.inputs, strict=True))
    sides = [given[node].reshape(shape) for node, shape in found.sides]
    *rows, k = x.shape
    a, b = x.reshape(math.prod(rows), k), w.t() if turned else w
    reason = unsupported(a, b, sides)
    if reason is not None:
        return decline(reason)
    return kernel(a, b, sides, found.program, root.dtype).view(root.shape)


RULES = RuleSet((product_and_epilogue,), "gemm")
