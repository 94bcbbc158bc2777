"""Layouts of queries, keys and values: dimensions of einsums, and shapes of four dimensions.

Letters in shapes: B batch, H query heads, G heads of keys and values, n query heads for each of
these, S queries, T keys, D elements of a head, E elements of a value.
"""

from pypm.fx import same_size


def arranged(q, k, v, lk, lv):
    """Return q [..., S, D], k [..., T, D], v [..., T, E], and the permutation of the result.

    Arguments:
        q, k, v: the operands, as the model has them.
        lk: the layout of the scores: an einsum's equation, "BTGD", another name for a transposed
            k, or "" for k as it is.
        lv: the same for the product with v.

    All four are None if an einsum is not q k^T; the last two are None if one is not weights v.
    """
    if "," in lk:
        q, k = scores_by(lk, q, k)
    elif lk:
        k = k.transpose(1, 2) if lk == "BTGD" else k.transpose(-2, -1)
    if q is None:
        return None, None, None, None
    out = tuple(range(q.dim()))
    if "," in lv:
        v, out = values_by(lv, v, q.dim())
    elif lv:
        v = v.transpose(1, 2)
    return q, k, v, out


def scores_by(equation, q, k):
    """Return the operands of an einsum as q [..., S, D] and k [..., T, D].

    Both are None if the equation is not q k^T, with one contracted letter.
    """
    a, b, out = letters(equation, q.dim(), k.dim())
    *batch, s, t = out if len(out) > 1 else "  "
    if s in b and t in a:
        a, b, q, k = b, a, k, q
    summed = [x for x in a if x in b and x not in out]
    if len(summed) != 1 or {*a} != {*batch, s, *summed} or not {*b} <= {*batch, t, *summed}:
        return None, None
    if t not in b or len({*a}) != len(a) or len({*b}) != len(b):
        return None, None
    return permuted(q, a, [*batch, s, *summed]), permuted(k, b, [*batch, t, *summed])


def values_by(equation, v, rank):
    """Return the second operand of an einsum as v [..., T, E], and the permutation of its result.

    Both are None if the equation is not weights v. `rank` is that of the weights.
    """
    a, b, out = letters(equation, rank, v.dim())
    *batch, s, t = a if len(a) > 1 else "  "
    new = [x for x in b if x not in a]
    if len(new) != 1 or t not in b or s in b or len({*b}) != len(b) or len({*a}) != len(a):
        return None, None
    if sorted(out) != sorted([*batch, s, *new]):
        return None, None
    order = [*batch, s, *new]
    return permuted(v, b, [*batch, t, *new]), tuple(order.index(x) for x in out)


def letters(equation, *ranks):
    """Return the dimensions of operands and result, one character each; an ellipsis as digits.

    `ranks` are those of the operands.
    """
    sides, _, out = equation.replace(" ", "").partition("->")
    found = []
    for side, rank in zip(sides.split(","), ranks, strict=True):
        more = rank - len(side.replace("...", ""))
        dots = "".join(map(str, range(9 - more, 9)))
        found.append(side.replace("...", dots))
    longest = max((x for x in found), key=lambda x: sum(c.isdigit() for c in x))
    return (*found, out.replace("...", "".join(c for c in longest if c.isdigit())))


def permuted(x, given, wanted):
    """Return x, whose dimensions have the names `given`, with the dimensions `wanted`, in order.

    Dimensions that x lacks have size 1.
    """
    x = x.permute([given.index(c) for c in wanted if c in given])
    for i, c in enumerate(wanted):
        x = x if c in given else x.unsqueeze(i)
    return x


def heads_of(q, shapes):
    """Return B and H of the kernel, for a query q [B * H, S, D], [B, H, S, D] or [B, G, n, S, D].

    A query of three dimensions is split as the first of `shapes` that fits, those of the scores
    where masks are added; without one, B is 1.
    """
    if q.dim() == 5:
        return q.shape[0], q.shape[1] * q.shape[2]
    if q.dim() == 4:
        return tuple(q.shape[:2])
    for shape in shapes:
        if (
            len(shape) == 4
            and same_size(shape[0] * shape[1], q.shape[0])
            and same_size(shape[2], q.shape[1])
        ):
            return tuple(shape[:2])
    return 1, q.shape[0]


def of_rank_four(x, q, batch):
    """Return x [B * H, S, D], [B, H, S, D] or [B, G, n, S, D] as [B, H, S, D].

    Arguments:
        x: the query, the keys or the values. With five dimensions, n may be 1: a head for n heads
            of the query.
        q: the query; an x that is broadcast to it in another way is returned unchanged.
        batch: B and H.
    """
    ours, theirs = x.shape[:-2], q.shape[:-2]
    if x.dim() == 5 and all(map(same_size, ours[:2], theirs[:2])) and same_size(ours[2], 1):
        return x.squeeze(2)
    if x.dim() == 4 or not all(map(same_size, ours, theirs)):
        return x
    return x.reshape(*batch, *x.shape[-2:])
