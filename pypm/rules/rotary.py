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
from pypm.kernels.rotary import joined, unsupported
from pypm.kernels.rotary import rotary as kernel
from pypm.kernels.support.devices import off_cpu
from pypm.rules.vocabulary.indexing import Selected, Stretch, every_second, half, sliced
from pypm.rules.vocabulary.shapes import Cast, Reshape, Rounded, same

FEW = 2**16
"""Elements of a query below which a call takes longer than what Inductor makes."""

# --- pairs (a, b): the halves of a row, or neighbours in it ---------------------------------------


@predicate
def is_even(n):
    return n % 2 == 0


def pairs(x, interleaved):
    """Return the first and the second elements of all pairs."""
    return x.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else x.chunk(2, -1)


def turned_by_a_quarter(x, interleaved, shape=None):
    """Return every pair (a, b) as (-b, a)."""
    a, b = pairs(x, interleaved)
    return joined_in_shape(-b, a, interleaved, shape)


@pattern(means=lambda x, interleaved: pairs(x, interleaved)[0])
def First(x, interleaved):  # the first elements of all pairs
    at = var()
    let(interleaved=True)
    assert is_even(x.shape[-1]) and at == every_second(x.shape, 0)
    return Selected(x, at)


@pattern
def First(x, interleaved):
    at = var()
    let(interleaved=False)
    assert is_even(x.shape[-1]) and at == half(x.shape, 0)
    return Selected(x, at)


@pattern(means=lambda x, interleaved: pairs(x, interleaved)[1])
def Second(x, interleaved):  # the second elements
    at = var()
    let(interleaved=True)
    assert is_even(x.shape[-1]) and at == every_second(x.shape, 1)
    return Selected(x, at)


@pattern
def Second(x, interleaved):
    at = var()
    let(interleaved=False)
    assert is_even(x.shape[-1]) and at == half(x.shape, 1)
    return Selected(x, at)


def joined_in_shape(a, b, interleaved, shape=None):
    """Return rows of pairs in the shape that the result has."""
    rows = joined(a, b, interleaved)
    return rows if shape is None else rows.reshape(shape)


@pattern(means=joined_in_shape)
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
    y = Written(Written(out, a, i), b, j) | Written(Written(out, b, j), a, i)
    assert i == every_second(out.shape, 0) and j == every_second(out.shape, 1)
    assert a.shape == b.shape and out.shape[:-1] == a.shape[:-1]
    assert out.shape[-1] == 2 * a.shape[-1]
    return y


def written(x, part, at):
    """Return x, with `part` for x[..., at]."""
    return torch.slice_scatter(x, part, -1, at.start, at.stop, at.step)


@pattern(means=written)
def Written(x, part, at):
    return WrittenAt(x, part, at)


@pattern
def WrittenAt(x, part, at):
    start, stop, step = var(), var(), var()
    let(at=sliced(x.shape, start, stop, step))
    return aten.slice_scatter(x, Copied(x, at, part), -1, start, stop, step)


@pattern
def Copied(x, at, part):
    return part


@pattern
def Copied(x, at, part):
    return aten.copy(Selected(x, at), part, _)


@pattern(means=lambda a, b: torch.stack((a, b), -1))
def Stacked(a, b):
    return aten.stack([a, b], -1) | aten.cat([aten.unsqueeze(a, -1), aten.unsqueeze(b, -1)], -1)


@pattern(means=turned_by_a_quarter)
def Quarter(x, interleaved):  # (a, b) as (-b, a)
    y = Joined(-Second(x, interleaved), First(x, interleaved), interleaved)
    assert y.dtype == x.dtype
    return y


# --- the embedding -------------------------------------------------------------------------------


def turned(x, cos, sin, interleaved, halved):
    """Return x with each pair (a, b) as (a cos - b sin, b cos + a sin)."""
    if halved:
        cos, sin = each(cos, interleaved), each(sin, interleaved)
    return x * cos + turned_by_a_quarter(x, interleaved) * sin


@pattern(means=turned)
def Turned(x, cos, sin, interleaved, halved):  # x cos + (-b, a) sin
    y = var()
    let(halved=False)
    y <= Cast(x)
    assert is_even(x.shape[-1])
    assert cos.shape[-1] == sin.shape[-1] == y.shape[-1]
    return y * cos + Quarter(y, interleaved) * sin


@pattern
def Turned(x, cos, sin, interleaved, halved):  # the same, where pairs are turned before the cast
    y, z = var(), var()
    let(halved=False)
    y <= Cast(x)
    assert is_even(x.shape[-1])
    z <= Rounded(Quarter(x, interleaved))
    assert z.dtype == y.dtype
    assert cos.shape[-1] == sin.shape[-1] == y.shape[-1]
    return y * cos + z * sin


@pattern
def Turned(x, cos, sin, interleaved, halved):  # (a cos - b sin, b cos + a sin): an angle a pair
    y, a, b = var(), var(), var()
    let(halved=True)
    a <= First(y, interleaved)
    b <= Second(y, interleaved)
    y <= Cast(x)
    assert is_even(x.shape[-1])
    assert cos.shape[-1] == sin.shape[-1] == a.shape[-1]
    first = a * cos - b * sin
    turned = Joined(first, b * cos + a * sin, interleaved)
    assert turned.dtype == first.dtype or turned.dtype == x.dtype
    return turned


@pattern
def Turned(x, cos, sin, interleaved, halved):  # the same: an angle a column
    y, a, b = var(), var(), var()
    let(halved=False)
    a <= First(y, interleaved)
    b <= Second(y, interleaved)
    y <= Cast(x)
    assert is_even(x.shape[-1])
    assert cos.shape[-1] == sin.shape[-1] == y.shape[-1]
    first = a * First(cos, interleaved) - b * First(sin, interleaved)
    second = b * Second(cos, interleaved) + a * Second(sin, interleaved)
    turned = Joined(first, second, interleaved)
    assert turned.dtype == first.dtype or turned.dtype == x.dtype
    return turned


@pattern(means=same)
def Rounding(x):
    return Rounded(x)


@pattern
def Rounding(x):
    return x


def turned_before(x, cos, sin, interleaved, halved, rest):
    """Return rows of which all but the last elements, `rest` of them, are turned."""
    first, last = x.split((cos.shape[-1] * (2 if halved else 1), rest), -1)
    return torch.cat((turned(first, cos, sin, interleaved, halved), last), -1)


@pattern(means=turned_before)
def Rotary(x, cos, sin, interleaved, halved, rest):
    let(rest=0)
    y = Rounding(Turned(x, cos, sin, interleaved, halved))
    assert y.dtype == x.dtype
    return y


@predicate
def length(one, other):
    return one + other


@pattern
def Rotary(x, cos, sin, interleaved, halved, rest):  # of the first elements of each row
    n, others, last = var(), var(), var()
    let(rest=length(others, last))
    assert n + last == x.shape[-1] and last > 0
    first = Rotary(Stretch(x, 0, n), cos, sin, interleaved, halved, others)
    return aten.cat([first, Stretch(x, n, last)], -1)


@pattern
def Both(q, k, cos, sin, interleaved, halved):
    of_q, of_k = var(), var()
    assert q.shape[-1] == k.shape[-1] and q.dtype == k.dtype and cos.shape == sin.shape
    turned = Rotary(q, cos, sin, interleaved, halved, of_q)
    return turned, Rotary(k, cos, sin, interleaved, halved, of_k)


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
