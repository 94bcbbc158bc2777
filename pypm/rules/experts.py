"""Mixtures of experts: products with a matrix that is gathered for each row.

Routing gives every token the numbers of its experts. Models gather the experts' weights by them,
`weights[ids]`, and multiply each token by its own copy; the copies take most of the time. The rule
replaces the gather and the product by `pypm::grouped_linear`, which sorts the rows by expert and
multiplies each group once. It reads nothing of the routing, the activation or the biases, so it
holds for all of them.

For any stage, on CPUs, and by Triton on GPUs. `pre_grad` is the stage for training: the operator
has gradients.
"""

from math import prod

import torch

from pypm import RuleSet, decline, let, pattern, rule, var
from pypm.fx import aten, same_size
from pypm.kernels.grouped_linear import grouped_linear
from pypm.kernels.support.devices import on_cpu
from pypm.kernels.support.triton import missing
from pypm.rules.vocabulary.shapes import Batch, NoOp, ResizedInSteps, Transposed
from pypm.rules.vocabulary.types import FLOATS

# --- the gathered weights ------------------------------------------------------------------------


def gathered(w, ids, is_transposed):
    """Return the matrices of rows."""
    return w[ids].mT if is_transposed else w[ids]


@pattern(through=NoOp, means=lambda w, ids: w[ids])
def Gather(w, ids):  # w[ids], [..., rows, columns]
    y = aten.index(w, [ids])
    assert w.rank == 3 and y.rank == ids.rank + 2
    assert ids.dtype in (torch.int64, torch.int32)
    return y


@pattern(means=gathered)
def Gathered(w, ids, is_transposed):
    let(is_transposed=False)
    return Gather(w, ids)


@pattern(through=NoOp)
def Gathered(w, ids, is_transposed):
    let(is_transposed=True)
    return Transposed(Gather(w, ids))


@pattern
def Matrices(w, ids, is_transposed):
    return Batch(Gathered(w, ids, is_transposed)) | Gathered(w, ids, is_transposed)


@pattern
def Joined(w, ids):  # einsum: the rows of several matrices behind one another
    g = Gather(w, ids)
    y = ResizedInSteps(g)
    assert y.shape[-1] == g.shape[-1]
    return y


# --- the products --------------------------------------------------------------------------------


@pattern(means=torch.matmul)
def Product(a, b):
    return aten.matmul(a, b) | aten.bmm(a, b)


@pattern
def Each(x, m, of_columns):  # one row by each matrix
    let(of_columns=False)
    y = Product(x, m)
    assert y.shape[-2] == 1
    return y


@pattern
def Each(x, m, of_columns):  # each matrix by one column
    let(of_columns=True)
    y = Product(m, x)
    assert y.shape[-1] == 1
    return y


@pattern
def Experts(w, ids, of_columns, is_transposed):
    assert w.rank == 3
    return Matrices(w, ids, is_transposed)


@pattern
def Experts(w, ids, of_columns, is_transposed):
    let(of_columns=True)
    let(is_transposed=False)
    m = Joined(w, ids)
    assert w.rank == 3
    assert m.shape[-2] != w.shape[-2] and m.shape[-2] % w.shape[-2] == 0
    return m


@pattern
def ExpertProduct(x, w, ids, of_columns, is_transposed, shape):
    m = var()
    m <= Experts(w, ids, of_columns, is_transposed)
    y = Each(x, m, of_columns)
    let(shape=y.shape)
    assert x.rank == m.rank and m.shape[:-2] == y.shape[:-2]
    assert x.dtype == w.dtype and y.dtype == w.dtype
    return y


# --- the rule ------------------------------------------------------------------------------------


@rule(ExpertProduct, pays="mostly")
def grouped_experts(x, w, ids, of_columns, is_transposed, shape):
    if w.dtype not in FLOATS:
        return decline("the operands are not of a floating-point type")
    if not on_cpu(w) and (reason := missing(w)):
        return decline(reason)
    if of_columns:
        x = x.mT
    weights = w if of_columns == is_transposed else w.mT
    width, out = weights.shape[1:]
    if same_size(width, 0) or same_size(out, 0):
        return decline("the weights are empty")
    rows = x.expand(*shape[:-2], prod(shape[-2:]) // out, width).reshape(-1, width)
    return grouped_linear(rows, weights, ids.reshape(-1)).reshape(shape)


RULES = RuleSet((grouped_experts,), "experts")
