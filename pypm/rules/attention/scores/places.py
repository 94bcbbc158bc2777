"""Readers of operators that make counts and constants, or move elements to other places."""

import math

import torch

from pypm.fx import GETITEM, metadata
from pypm.kernels.attention.expressions import FALSE, Applied, Number, apply
from pypm.rules.attention.scores.bounds import fits
from pypm.rules.attention.scores.reader import KINDS, WHOLE, NotRead, dtype_of, is_index, known


def counted(reader, node, call, places):
    """Read `arange` of integers."""
    start, step = call.attributes["start"] or 0, call.attributes["step"]
    if metadata(node).dtype not in WHOLE or not all(type(n) is int for n in (start, step)):
        raise NotRead
    return apply("+", apply("*", places[0], Number(step)), Number(start))


def constant(value):
    """Return the reader of a tensor with this value everywhere."""

    def read(reader, node, call, places):
        dtype = metadata(node).dtype
        given = call.attributes["fill_value"] if value is None else value
        if type(given) not in (bool, int, float):
            raise NotRead
        return Number({"bool": bool, "int": int, "float": float}[KINDS[dtype]](given))

    return read


def triangle(sign):
    """Return the reader of `tril` or `triu`."""

    def read(reader, node, call, places):
        *_, i, j = places
        inside = apply(sign, apply("-", j, i), Number(call.attributes["diagonal"]))
        zero = FALSE if metadata(node).dtype == torch.bool else Number(0)
        return apply("where", inside, reader.element(call.arguments[0], places), zero)

    return read


def same_places(reader, node, call, places):
    """Read a copy."""
    return reader.element(call.arguments[0], places)


def expanded(reader, node, call, places):
    """Read a tensor that is broadcast."""
    source = call.arguments[0]
    return reader.element(source, places[len(places) - known(source).dim() :])


def unsqueezed(reader, node, call, places):
    """Read a tensor with a dimension more."""
    dim = call.attributes["dim"]
    return reader.element(call.arguments[0], (*places[:dim], *places[dim + 1 :]))


def permuted(reader, node, call, places):
    """Read a tensor with its dimensions in another order."""
    dims = call.attributes["dims"]
    return reader.element(call.arguments[0], [places[dims.index(d)] for d in range(len(dims))])


def transposed(reader, node, call, places):
    """Read a tensor with two dimensions exchanged."""
    given, swapped = call.attributes, [*places]
    i, j = (given["dim0"], given["dim1"]) if "dim0" in given else (-1, -2)
    swapped[i], swapped[j] = swapped[j], swapped[i]
    return reader.element(call.arguments[0], swapped)


def sliced(reader, node, call, places):
    """Read a part of a tensor along one dimension."""
    given, source = call.attributes, call.arguments[0]
    dim, start, step = given["dim"], given["start"] or 0, given["step"]
    total = known(source).shape[dim]
    if not all(type(n) is int for n in (start, step, total)):
        raise NotRead
    start = max(0, start + total) if start < 0 else start
    return reader.element(source, moved(places, dim, start, step))


def moved(places, dim, start, step):
    """Return places after those along one dimension are start + step * place."""
    place = apply("+", apply("*", places[dim], Number(step)), Number(start))
    return (*places[:dim], place, *places[dim + 1 :])


def selected(reader, node, call, places):
    """Read a tensor at one place along one dimension."""
    dim, index, source = call.attributes["dim"], call.attributes["index"], call.arguments[0]
    if type(index) is not int:
        raise NotRead
    index = index + known(source).shape[dim] if index < 0 else index
    return reader.element(source, (*places[:dim], Number(index), *places[dim:]))


def indexed(reader, node, call, places):
    """Read a subscript of slices, numbers and None."""
    if len(call.arguments) != 1:
        raise NotRead
    (source,), index = call.arguments, call.attributes["index"]
    shape = known(source).shape
    is_one = not isinstance(index, tuple) or index[:1] in (("slice",), ("list",))
    items = [index] if is_one else list(index)
    used = sum(item is not None and item is not ... for item in items)
    if ... in items:
        at = items.index(...)
        rest = [("slice", None, None, None)] * (len(shape) - used)
        items[at : at + 1] = rest
    items += [("slice", None, None, None)] * (len(shape) - sum(i is not None for i in items))
    left, found = list(places), []
    for item, total in zip(items, _sizes_of(items, shape), strict=True):
        if item is None:
            left.pop(0)
        elif type(item) is int:
            found.append(Number(item + total if item < 0 else item))
        elif isinstance(item, tuple) and item[:1] == ("slice",):
            _, start, _, step = item
            start, step = start or 0, step or 1
            if type(start) is not int or type(step) is not int:
                raise NotRead
            start = max(0, start + total) if start < 0 else start
            found.append(apply("+", apply("*", left.pop(0), Number(step)), Number(start)))
        else:
            raise NotRead
    return reader.element(source, found)


def _sizes_of(items, shape):
    sizes = iter(shape)
    return [None if item is None else next(sizes) for item in items]


def gathered(reader, node, call, places):
    """Read a tensor at places that other tensors say, for each of its dimensions."""
    source, indices = call.arguments[0], call.arguments[1]
    if len(indices) != known(source).dim() or any(i is None for i in indices):
        raise NotRead
    if any(dtype_of(i) not in WHOLE for i in indices):
        raise NotRead
    found = [reader.argument(i, places) for i in indices]
    if not all(map(is_index, found)):  # data may be negative, which counts from the end
        raise NotRead
    if all(fits(i, 0, math.inf, reader.sizes) for i in found):
        return reader.element(source, found)
    return reader.leaf(source, found)  # which counts what is negative from its own end


def reshaped(reader, node, call, places):
    """Read a tensor of another shape with the same elements in the same order."""
    if call.attributes.get("dtype") is not None:
        raise NotRead
    source = call.arguments[0]
    shape, wanted = metadata(node).shape, known(source).shape
    return reader.element(source, regrouped(places, shape, wanted, reader.sizes))


def regrouped(places, shape, wanted, sizes):
    """Return places in a tensor of the shape `wanted` that has the elements of one of `shape`.

    `sizes` are those of the scores.
    """
    if not all(isinstance(n, int) for n in (*shape, *wanted)):
        raise NotRead
    if not 0 < math.prod(shape) == math.prod(wanted):
        raise NotRead
    given = [(p, n) for p, n in zip(places, shape, strict=True) if n != 1]
    found = []
    linear, left = Number(0), 1  # the place that is not yet split, and the size that it counts
    for n in reversed(wanted):
        if n == 1:
            found.append(Number(0))
            continue
        while left % n and given:
            linear, left = joined(given, linear, left)
        if left % n:
            raise NotRead
        rest, place = split(linear, n, sizes) if left != n else (Number(0), linear)
        found.append(place)
        linear, left = rest, left // n
    return tuple(reversed(found))


def joined(given, linear, left):
    """Return a place that counts the last dimension of `given` too, and its size."""
    place, n = given.pop()
    return apply("+", apply("*", place, Number(left)), linear), left * n


def split(x, n, sizes):
    """Return x // n and x % n; places that were joined come apart again."""
    match x:
        case Applied("+", (Applied("*", (high, Number(m))), low)) if m == n and fits(
            low, 0, n - 1, sizes
        ):
            return high, low
    return apply("//", x, Number(n)), apply("%", x, Number(n))


PLACES = {
    "prims.iota": counted,
    "aten.arange": counted,
    "aten.full": constant(None),
    "aten.full_like": constant(None),
    **dict.fromkeys(("aten.zeros", "aten.zeros_like", "aten.new_zeros"), constant(0)),
    **dict.fromkeys(("aten.ones", "aten.ones_like", "aten.new_ones"), constant(1)),
    "aten.new_full": constant(None),
    "aten.tril": triangle("<="),
    "aten.triu": triangle(">="),
    **dict.fromkeys(
        ("aten.clone", "aten.contiguous", "aten.alias", "aten.detach", "aten.lift_fresh_copy"),
        same_places,
    ),
    **dict.fromkeys(("aten.expand", "aten.expand_as", "aten.broadcast_to"), expanded),
    "aten.unsqueeze": unsqueezed,
    "aten.permute": permuted,
    **dict.fromkeys(("aten.transpose", "aten.mT", "aten.t"), transposed),
    "aten.slice": sliced,
    "aten.select": selected,
    "aten.index": gathered,
    GETITEM.name: indexed,
    **dict.fromkeys(
        (
            *("aten.view", "aten.reshape", "aten._unsafe_view", "aten.view_as", "aten.reshape_as"),
            *("aten.squeeze", "aten.flatten", "aten.unflatten"),
        ),
        reshaped,
    ),
}
"""Readers by the names of operators."""
