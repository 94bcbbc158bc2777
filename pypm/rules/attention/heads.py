"""Patterns of keys and values: heads that queries share, and the orders of their dimensions."""

from pypm import let, pattern, var
from pypm.fx import aten
from pypm.rules.attention.meanings import expanded, heads, keys, repeated
from pypm.rules.vocabulary.products import Scaled
from pypm.rules.vocabulary.shapes import NoOp, Reshape, Transposed


@pattern(through=NoOp, means=repeated)
def Repeated(k, dim):  # [B, G, T, D] with every head n times: [B, G * n, T, D]
    let(dim=1)
    e = aten.expand(aten.unsqueeze(k, 2), ...)
    y = Reshape(e)
    assert y.shape == (k.shape[0], k.shape[1] * e.shape[2], k.shape[2], k.shape[3])
    return y


@pattern(through=NoOp)
def Repeated(k, dim):  # the same of [B, T, G, D]
    let(dim=2)
    e = aten.expand(aten.unsqueeze(k, 3), ...)
    y = Reshape(e)
    assert y.shape == (k.shape[0], k.shape[1], k.shape[2] * e.shape[3], k.shape[3])
    return y


@pattern(through=NoOp)
def Repeated(k, dim):
    n = var()
    assert k.rank == 4 and 1 <= dim <= 2 and n.numel == 1
    return aten.repeat_interleave(k, n, dim, ...)


@pattern(through=NoOp, means=expanded)
def Shared(k):  # [B, 1, T, D] as [B, n, T, D]
    y = aten.expand(k, ...)
    assert k.rank == 4 and k.shape[1] == 1
    assert y.shape[0] == k.shape[0] and y.shape[2:] == k.shape[2:]
    return y


@pattern(through=NoOp, means=expanded)
def SharedInGroups(k):  # [B, G, 1, T, D] as [B, G, n, T, D]
    y = aten.expand(k, ...)
    assert k.rank == 5 and k.shape[2] == 1
    assert y.shape[:2] == k.shape[:2] and y.shape[3:] == k.shape[3:]
    return y


@pattern(means=expanded)
def Broadcast(k):
    return SharedInGroups(k) | Shared(k)


@pattern(means=lambda x: x.transpose(1, 2))
def Swapped(x):
    return aten.transpose(x, 1, 2) | aten.transpose(x, 2, 1) | aten.permute(x, [0, 2, 1, 3])


@pattern(means=heads)
def Heads4D(k, layout):  # layout: how [B, G, T, D] is had from k
    return NoOp(Heads4D(k, layout))


@pattern(through=NoOp)
def Heads4D(k, layout):
    d = var()
    let(layout="")
    assert d == 1
    return Repeated(k, d)


@pattern(through=NoOp)
def Heads4D(k, layout):
    d = var()
    let(layout="BTGD")
    assert d == 2
    return Swapped(Repeated(k, d))


@pattern(through=NoOp)
def Heads4D(k, layout):
    let(layout="")
    return Shared(k)


@pattern
def Heads4D(k, layout):
    let(layout="")
    return k


@pattern(means=heads)
def Heads(k, layout):  # also of five dimensions
    let(layout="")
    return SharedInGroups(k)


@pattern
def Heads(k, layout):
    return Heads4D(k, layout)


@pattern(through=NoOp, means=keys)
def Keys(k, layout, steps=()):  # (k s)^T = k^T s
    kt = Transposed(Scaled(Heads(k, layout), steps))
    return kt | Scaled(Transposed(Heads(k, layout)), steps)


@pattern(through=NoOp)
def Keys(k, layout, steps=()):
    d = var()
    let(layout="BTGD")
    assert d == 2
    return aten.permute(Scaled(Repeated(k, d), steps), [0, 2, 3, 1])


@pattern
def Keys(k, layout, steps=()):  # keys that are stored as columns, or transposed in another way
    let(layout="BGDT")
    return Scaled(Broadcast(k), steps)


@pattern
def Keys(k, layout, steps=()):
    let(layout="BGDT")
    return Scaled(k, steps)
