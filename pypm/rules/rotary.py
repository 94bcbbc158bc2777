"""Rotary embeddings of query and key together, rotated by the same angles.

The pairs may be halves or neighbours, of whole rows or of their first elements, in any spelling;
neighbours may be written into every second element of a result (where the graph has no writes
left: at `joint`, and in programs after `run_decompositions`). `pypm.kernels.rotary` states the
computation. At any hook, on CPUs: there the kernel is a candidate, which a choice measures beside
the model's operators, which Inductor fuses.
"""

import operator

import torch

from pypm import RuleSet, decline, let, pattern, predicate, rule, var
from pypm.fx import aten, known_to_hold
from pypm.kernels.rotary import rotary as kernel
from pypm.kernels.rotary import unsupported
from pypm.kernels.support.devices import off_cpu
from pypm.rules.vocabulary.indexing import Taken, sliced
from pypm.rules.vocabulary.shapes import Cast, Reshape, Rounded

FEW = 2**16
"""Elements of a query below which a call takes longer than what Inductor makes."""

# --- pairs (a, b): the halves of a row, or neighbours in it ---------------------------------------


@predicate
def are_pairs(a, b, shape, interleaved):
    n = shape[-1]
    whole = range(n)
    if interleaved:
        return (a, b) == (whole[::2], whole[1::2]) and n % 2 == 0
    return (a, b) == (whole[: n // 2], whole[n // 2 :]) and n % 2 == 0


@predicate
def are_parts(a, b, shape):
    return (a, b) == (range(len(a)), range(len(a), shape[-1])) and len(b) > 0


@pattern
def Joined(a, b, interleaved):
    let(interleaved=False)
    return aten.cat([a, b], -1)


@pattern
def Joined(a, b, interleaved):
    let(interleaved=True)
    y = Stacked(a, b)
    return Reshape(y)


@pattern
def Joined(a, b, interleaved):  # written over all elements of another tensor, in either order
    out, i, j = var(), var(), var()
    let(interleaved=True)
    y = Written(Written(out, a, i), b, j)
    assert are_pairs(i, j, y.shape, True)
    return y


@pattern
def Joined(a, b, interleaved):
    out, i, j = var(), var(), var()
    let(interleaved=True)
    y = Written(Written(out, b, j), a, i)
    assert are_pairs(i, j, y.shape, True)
    return y


@pattern
def Written(x, part, at):  # x, with `part` for x[..., at]
    start, stop, step = var(), var(), var()
    let(at=sliced(x.shape, start, stop, step))
    return aten.slice_scatter(x, Copied(x, at, part), -1, start, stop, step)


@pattern
def Copied(x, at, part):
    return part


@pattern
def Copied(x, at, part):
    return aten.copy(Taken(x, at), part, _)


@pattern
def Stacked(a, b):
    return aten.stack([a, b], -1) | aten.cat([aten.unsqueeze(a, -1), aten.unsqueeze(b, -1)], -1)


@pattern
def Quarter(x, interleaved):  # (a, b) as (-b, a)
    i, j = var(), var()
    y = Joined(-Taken(x, j), Taken(x, i), interleaved)
    assert are_pairs(i, j, x.shape, interleaved) and y.dtype == x.dtype
    return y


# --- the embedding -------------------------------------------------------------------------------


@pattern
def Turned(x, cos, sin, interleaved, halved):  # x cos + (-b, a) sin
    y = var()
    let(halved=False)
    y <= Cast(x)
    assert cos.shape[-1] == sin.shape[-1] == y.shape[-1]
    return y * cos + Quarter(y, interleaved) * sin


@pattern
def Turned(x, cos, sin, interleaved, halved):  # the same, where pairs are turned before the cast
    y, z = var(), var()
    let(halved=False)
    y <= Cast(x)
    z <= Rounded(Quarter(x, interleaved))
    assert z.dtype == y.dtype
    assert cos.shape[-1] == sin.shape[-1] == y.shape[-1]
    return y * cos + z * sin


@pattern
def Turned(x, cos, sin, interleaved, halved):  # (a cos - b sin, b cos + a sin): an angle a pair
    y, a, b, i, j = var(), var(), var(), var(), var()
    let(halved=True)
    a <= Taken(y, i)
    b <= Taken(y, j)
    y <= Cast(x)
    assert are_pairs(i, j, y.shape, interleaved)
    assert cos.shape[-1] == sin.shape[-1] == a.shape[-1]
    first = a * cos - b * sin
    turned = Joined(first, b * cos + a * sin, interleaved)
    assert turned.dtype == first.dtype or turned.dtype == x.dtype
    return turned


@pattern
def Turned(x, cos, sin, interleaved, halved):  # the same: an angle a column
    y, a, b, i, j = var(), var(), var(), var(), var()
    let(halved=False)
    a <= Taken(y, i)
    b <= Taken(y, j)
    y <= Cast(x)
    assert are_pairs(i, j, y.shape, interleaved)
    assert cos.shape[-1] == sin.shape[-1] == y.shape[-1]
    first = a * Taken(cos, i) - b * Taken(sin, i)
    turned = Joined(first, b * Taken(cos, j) + a * Taken(sin, j), interleaved)
    assert turned.dtype == first.dtype or turned.dtype == x.dtype
    return turned


@pattern
def Rounding(x):
    return Rounded(x)


@pattern
def Rounding(x):
    return x


@pattern
def Rotary(x, cos, sin, interleaved, halved):
    y = Rounding(Turned(x, cos, sin, interleaved, halved))
    assert y.dtype == x.dtype
    return y


@pattern
def Rotary(x, cos, sin, interleaved, halved):  # of the first elements of each row
    i, j = var(), var()
    y = aten.cat([Rotary(Taken(x, i), cos, sin, interleaved, halved), Taken(x, j)], -1)
    assert are_parts(i, j, x.shape)
    return y


@pattern
def Both(q, k, cos, sin, interleaved, halved):
    assert q.shape[-1] == k.shape[-1] and q.dtype == k.dtype
    return Rotary(q, cos, sin, interleaved, halved), Rotary(k, cos, sin, interleaved, halved)


@rule(Both, unless=off_cpu, pays="sometimes", exactness="rounding")
def rotary_of_both(q, k, cos, sin, interleaved, halved):
    if known_to_hold(operator.lt, q.numel(), FEW):
        return decline(f"a query of fewer than {FEW:,} elements")
    if halved:  # an angle for each element
        cos, sin = (each(angle, interleaved) for angle in (cos, sin))
    reason = unsupported([q, k], cos, sin)
    if reason is not None:
        return decline(reason)
    turned = kernel([q, k], cos, sin, interleaved)
    return turned[0], turned[1]


def each(angle, interleaved):
    """Return the angles of pairs [..., n / 2] as those of their elements [..., n]."""
    return angle.repeat_interleave(2, -1) if interleaved else torch.cat((angle, angle), -1)


RULES = RuleSet((rotary_of_both,), "rotary")
