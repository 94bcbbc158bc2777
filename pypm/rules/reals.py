"""Rewrites that are equal over the real numbers, but not in floating point: opt-in only.

They are for graphs as captured, before other rules. Each saves operators or work. Each rounds
differently from the model, and may overflow or lose small values where the model does not, or the
reverse. So no default rule set contains them.
"""

from pypm import RuleSet, decline, let, pattern, rule, var
from pypm.fx import aten
from pypm.rules.spellings import FLOATS

# --- numbers --------------------------------------------------------------------------------------


@pattern
def TimesNumber(x, s):
    c = var()
    y = x * c
    let(s=c.value)
    assert c.rank == 0 and x.dtype in FLOATS and y.dtype == x.dtype
    return y


@pattern
def TimesNumber(x, s):
    c = var()
    y = x / c
    let(s=1 / c.value)
    assert c.rank == 0 and x.dtype in FLOATS and y.dtype == x.dtype
    return y


@pattern
def ScaledTwice(x, s, t):
    return TimesNumber(TimesNumber(x, s), t)


@rule(ScaledTwice)
def scaled_twice(x, s, t):  # (x s) t = x (s t)
    return x * (s * t)


@pattern
def PlusNumber(x, s):
    c = var()
    y = x + c
    let(s=c.value)
    assert c.rank == 0 and x.dtype in FLOATS and y.dtype == x.dtype
    return y


@pattern
def PlusNumber(x, s):
    c = var()
    y = x - c
    let(s=-c.value)
    assert c.rank == 0 and x.dtype in FLOATS and y.dtype == x.dtype
    return y


@pattern
def ShiftedTwice(x, s, t):
    return PlusNumber(PlusNumber(x, s), t)


@rule(ShiftedTwice)
def shifted_twice(x, s, t):  # (x + s) + t = x + (s + t)
    return x + (s + t)


# --- sums -----------------------------------------------------------------------------------------


@pattern
def SumOfSums(x, inner, outer):
    y = aten.sum(x, inner, False)
    z = aten.sum(y, outer, False)
    assert x.dtype in FLOATS and y.rank > 0
    return z


@rule(SumOfSums)
def sum_of_sums(x, inner, outer):  # sum_j sum_i x_ij = sum_ij x_ij
    if not inner or not outer:
        return decline("all dimensions, by another name")
    rank = x.dim()
    first = {d % rank for d in inner}
    left = [d for d in range(rank) if d not in first]
    return x.sum([*sorted(first), *(left[d] for d in outer)])


# --- products -------------------------------------------------------------------------------------


@pattern
def Distributed(x, v, w):
    return aten.mm(x, v) + aten.mm(x, w)


@rule(Distributed)
def distributed(x, v, w):  # x v + x w = x (v + w)
    assert v.shape == w.shape
    if not x.shape[0] >= 4:
        return decline("the weights are as large as the products")
    return x @ (v + w)


@pattern
def TripleProduct(a, b, c):
    return aten.mm(aten.mm(a, b), c)


@rule(TripleProduct)
def chain(a, b, c):  # (a b) c = a (b c)
    (n, k), m, p = a.shape, b.shape[1], c.shape[1]
    if not k * m * p + n * k * p < n * k * m + n * m * p:
        return decline("the products are cheaper as they are")
    return a @ (b @ c)


RULES = RuleSet((), "reals")
EVERY = RuleSet((scaled_twice, shifted_twice, sum_of_sums, distributed, chain), "reals")
"""All of these rules; opt-in."""
