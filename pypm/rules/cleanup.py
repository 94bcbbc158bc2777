"""Views, permutations, casts and slices that undo each other: removed, bit for bit.

For graphs as captured (`torch.export`, the stages `pre_grad` and `joint`). Such pairs occur where
layers meet: einsum leaves permutations, attention leaves views, mixed precision leaves casts. After
their removal, other patterns need not look through them. Inductor fuses most of them, so the gain
is small at its hooks, and larger if the graph runs as it is. Inductor's own attention patterns look
for such views: at `joint`, put this pack after `attention`, or use the stage `joint_post`.

The rules are exact: every float is rounded as before, and NaN and -0.0 stay. If a fresh tensor
becomes a view and that is observed, it is copied again, as for all rules. `clone` and `contiguous`
stay, since these copies are `clone`s. `view(dtype)` reinterprets bits and is not matched.
"""

import math
from itertools import pairwise

import torch

from pypm import RuleSet, decline, let, pattern, predicate, rule, var
from pypm.fx import aten, prims
from pypm.rules.dtypes import holds
from pypm.rules.spellings import COMPLEX, Reshape

# --- nothing --------------------------------------------------------------------------------------


@pattern
def Nothing(x):  # the same elements in the same shape
    y = Reshape(x) | aten.expand(x, ...) | aten.slice(x, ...) | aten.squeeze(x, ...)
    assert y.shape == x.shape
    return y


@pattern
def Nothing(x):
    y = aten.cat([x], ...)
    assert y.shape == x.shape  # without metadata, nothing restores strides that `cat` changes
    return y


@pattern
def Nothing(x):
    return aten.alias(x)


@rule(Nothing)
def nothing(x):
    return x


@predicate
def is_zero(value):
    if isinstance(value, complex):
        return False
    return value == 0 and math.copysign(1, value) == 1  # x - -0.0 is not x where that is -0.0


@pattern
def Same(x):  # x * 1 = x / 1 = x ** 1 = x - 0 = x, also of -0.0; x + 0 is not, in floats
    c = var()
    y = x * c | x / c | aten.pow(x, c)
    assert c.value == 1 and y.dtype == x.dtype and y.shape == x.shape
    return y


@pattern
def Same(x):
    c = var()
    y = x - c
    assert is_zero(c.value) and y.dtype == x.dtype and y.shape == x.shape
    return y


@pattern
def Same(x):  # - - x = x, also of the least integer
    return aten.neg(aten.neg(x)) | aten.bitwise_not(aten.bitwise_not(x))


@pattern
def Same(x):
    assert x.dtype == torch.bool
    return aten.logical_not(aten.logical_not(x))


@rule(Same)
def same(x):  # of complex numbers infinity times 1 gives NaN, and -0.0 - 0 may be 0.0
    assert x.dtype not in COMPLEX
    return x


# --- views of views -------------------------------------------------------------------------------


@predicate
def is_tensor(dtype):
    """Return True: a `full([], c)`, which is matched as the number c, has no dtype."""
    return True


@pattern
def Regrouped(x):  # the same elements in the same order
    return Reshape(x) | aten.unsqueeze(x, _) | aten.squeeze(x, ...)


@pattern
def RegroupedBack(x):
    y = Regrouped(Regrouped(x))
    assert y.shape == x.shape
    return y


@rule(RegroupedBack)
def regrouped_back(x):
    return x


@pattern
def ReshapedTwice(x, shape):
    y = Reshape(Reshape(x))
    let(shape=y.shape)
    assert is_tensor(x.dtype)
    return y


@rule(ReshapedTwice)
def reshaped_twice(x, shape):
    return x.reshape(shape)


@pattern
def ExpandedTwice(x, shape):
    y = aten.expand(aten.expand(x, ...), ...)
    let(shape=y.shape)
    assert is_tensor(x.dtype)
    return y


@rule(ExpandedTwice)
def expanded_twice(x, shape):
    return x.expand(shape)


@predicate
def swapping(rank, one, other):
    """Return the permutation of `rank` dimensions that swaps two."""
    dims = list(range(rank))
    dims[one], dims[other] = dims[other], dims[one]
    return tuple(dims)


@pattern
def Permuted(x, dims):
    return aten.permute(x, dims)


@pattern
def Permuted(x, dims):
    a, b = var(), var()
    let(dims=swapping(x.rank, a, b))
    return aten.transpose(x, a, b)


@pattern
def Permuted(x, dims):
    let(dims=swapping(x.rank, -2, -1))
    assert x.rank >= 2
    return aten.t(x) | aten.mT(x)


@pattern
def PermutedTwice(x, inner, outer):
    assert is_tensor(x.dtype)
    return Permuted(Permuted(x, inner), outer)


@rule(PermutedTwice)
def permuted_twice(x, inner, outer):
    return x.permute([inner[d] for d in outer])


@predicate
def in_order(dims):
    return [d % len(dims) for d in dims] == list(range(len(dims)))


@rule(Permuted)
def unpermuted(x, dims):
    assert in_order(dims)
    return x


# --- slices ---------------------------------------------------------------------------------------


@pattern
def SlicedTwice(x, d, inner, outer):
    a, b, s = var(), var(), var()
    e, f, t = var(), var(), var()
    let(inner=(a, b, s), outer=(e, f, t))
    return aten.slice(aten.slice(x, d, a, b, s), d, e, f, t)


@rule(SlicedTwice)
def sliced_twice(x, d, inner, outer):
    size = x.shape[d]
    if not all(n is None or isinstance(n, int) for n in (size, *inner, *outer)):
        return decline("the sizes are not known")
    taken = range(size)[slice(*inner)][slice(*outer)]
    return aten_slice(x, d, taken)


@pattern
def Following(x, d, start, ends):  # slices, each of which begins where the one before it ends
    let(ends=())
    return []


@pattern
def Following(x, d, start, ends):
    end, rest = var(), var()
    let(ends=(end, *rest))
    return [aten.slice(x, d, start, end), *Following(x, d, end, rest)]


@pattern
def Rejoined(x, d, start, end, ends):
    return aten.cat([aten.slice(x, d, start, end), *Following(x, d, end, ends)], d)


@rule(Rejoined)
def rejoined(x, d, start, end, ends):
    size, bounds = x.shape[d], (start, end, *ends)
    if not all(n is None or isinstance(n, int) for n in (size, *bounds)):
        return decline("the sizes are not known")
    taken = [i for a, b in pairwise(bounds) for i in range(size)[a:b]]
    if not taken or taken != list(range(taken[0], taken[-1] + 1)):
        return decline("the slices do not follow each other")
    return aten_slice(x, d, range(taken[0], taken[-1] + 1))


def aten_slice(x, d, taken):
    """Return the elements of x in the range `taken` along dimension d; x itself if it is all."""
    if taken == range(x.shape[d]):
        return x
    return torch.ops.aten.slice.Tensor(x, d, taken.start, taken.stop, taken.step)


# --- casts ----------------------------------------------------------------------------------------


@pattern
def Converted(x, dtype):
    y = prims.convert_element_type(x, ...) | aten._to_copy(x, ...) | aten.to(x, _)
    let(dtype=y.dtype)
    return y


@pattern
def ConvertedTwice(x, wide, dtype):
    assert holds(wide, x.dtype)
    return Converted(Converted(x, wide), dtype)


@rule(ConvertedTwice)
def converted_twice(x, wide, dtype):
    if dtype == x.dtype:
        return x
    if wide.is_floating_point and not dtype.is_floating_point:
        return decline("floats out of the range of integers become what the type before makes them")
    return x.to(dtype)


@rule(Converted)
def unconverted(x, dtype):  # another device or layout is another value, and refused
    assert dtype == x.dtype
    return x


# --- integers -------------------------------------------------------------------------------------

INTEGERS = (torch.int32, torch.int64)


@pattern
def SumOfConstants(x, c):  # (x + a) + b = x + (a + b), also where it wraps
    a, b = var(), var()
    let(c=a.value + b.value)
    z = (x + a) + b
    assert x.dtype in INTEGERS and z.dtype == x.dtype
    return z


@rule(SumOfConstants)
def sum_of_constants(x, c):
    return x + c if is_small(c) else decline("the constants are too large")


@pattern
def ProductOfConstants(x, c):  # (x * a) * b = x * (a * b), also where it wraps
    a, b = var(), var()
    let(c=a.value * b.value)
    z = (x * a) * b
    assert x.dtype in INTEGERS and z.dtype == x.dtype
    return z


@rule(ProductOfConstants)
def product_of_constants(x, c):
    return x * c if is_small(c) else decline("the constants are too large")


def is_small(c):
    """Return whether a number is an integer that int32 holds."""
    return isinstance(c, int) and abs(c) < 2**31


RULES = RuleSet(
    (
        nothing,
        same,
        regrouped_back,
        reshaped_twice,
        expanded_twice,
        unpermuted,
        permuted_twice,
        sliced_twice,
        rejoined,
        unconverted,
        converted_twice,
        sum_of_constants,
        product_of_constants,
    ),
    "cleanup",
)
