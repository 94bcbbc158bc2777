"""Shapes of the results of operators whose meaning asks for it: views, expansions, new tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

from pypm.laws.algebra import Given, Indexed, NoMeaning, Shape
from pypm.laws.sizes import World

__all__ = ["result_shape"]

SIZES: Final = ("size", "shape", "sizes")
"""Names of the arguments that say a shape."""
END: Final = 2**63 - 1
"""The end of a slice up to the last element."""


def result_shape(
    world: World, name: str, operands: Sequence[Given], attributes: Mapping[str, Given]
) -> Shape:
    """Return the shape of a result, as sizes; () for operators whose meaning does not need it.

    Raises NoMeaning if an argument that decides it may be anything.
    """
    kind = name.partition(".")[2]
    if kind.endswith("_like") or kind in ("view_as", "reshape_as", "expand_as"):
        return sizes_of(world, operands[-1])
    if kind.startswith("new_") or kind in ("zeros", "ones", "full", "empty", "empty_strided"):
        return tuple(attributes["size"])
    if kind == "arange":
        start, step = attributes["start"] or 0, attributes["step"]
        return ((attributes["end"] - start + step - 1) // step,)
    if kind == "iota":
        return (attributes["length"],)
    if kind == "repeat_interleave" and len(operands) > 1 and attributes["dim"] is not None:
        times, shape = operands[1], list(sizes_of(world, operands[0]))
        if times.rank or any(of[0] != "size" for m in times.value().terms for of, _ in m):
            raise NoMeaning("repeats that are a tensor")
        shape[attributes["dim"]] *= world.sized(times.value())
        return tuple(shape)
    kind = kind or name
    if kind not in _OF_ONE or not isinstance(operands[0], Indexed):
        return ()
    with world.observing(watched=world.watched, divides=kind in _CUTS):
        return _of_one(world, kind, operands[0], attributes)


def _of_one(world: World, kind: str, x: Indexed, attributes: Mapping[str, Given]) -> Shape:
    own = sizes_of(world, x)
    found = tuple(_OF_ONE[kind](list(own), dict(attributes)))
    if kind in ("view", "reshape", "_unsafe_view"):
        world.views.append((prod(own), prod(found)))
    return found


def sizes_of(world: World, x: Indexed) -> Shape:
    """Return the shape of a tensor as sizes."""
    return tuple(world.sized(n) for n in x.shape)


def _viewed(shape: list[Given], a: Mapping[str, Given]) -> Sequence[Given]:
    return _filled(a.get("size", a.get("shape")), prod(shape))


def _filled(given: Sequence[Given], total: Given) -> Sequence[Given]:
    """Return sizes with the one that is -1 computed."""
    if not isinstance(given, (tuple, list)):
        raise NoMeaning("a shape that may be anything")
    sizes = [*given]
    at = next((i for i, size in enumerate(sizes) if _is_any(size)), None)
    if at is not None:
        sizes[at] = total // prod([*sizes[:at], *sizes[at + 1 :]])
    return sizes


def _flattened(shape: list[Given], a: Mapping[str, Given]) -> Sequence[Given]:
    if not shape:
        return [1]
    start, end = a["start_dim"] % len(shape), a["end_dim"] % len(shape)
    return [*shape[:start], prod(shape[start : end + 1]), *shape[end + 1 :]]


def _unflattened(shape: list[Given], a: Mapping[str, Given]) -> Sequence[Given]:
    dim = a["dim"] % len(shape)
    return [*shape[:dim], *_filled(a["sizes"], shape[dim]), *shape[dim + 1 :]]


def _squeezed(shape: list[Given], a: Mapping[str, Given]) -> Sequence[Given]:
    dims = a["dim"]
    dims = range(len(shape)) if dims is None else (dims,) if isinstance(dims, int) else dims
    gone = {d % len(shape) for d in dims}
    return [n for d, n in enumerate(shape) if d not in gone or n != 1]


def _unsqueezed(shape: list[Given], a: Mapping[str, Given]) -> Sequence[Given]:
    dim = a["dim"] % (len(shape) + 1)
    return [*shape[:dim], 1, *shape[dim:]]


def _expanded(shape: list[Given], a: Mapping[str, Given]) -> Sequence[Given]:
    wanted = a.get("size", a.get("shape"))
    if not isinstance(wanted, (tuple, list)):
        raise NoMeaning("a shape that may be anything")
    own = [1] * (len(wanted) - len(shape)) + shape
    return [n if _is_any(m) else m for n, m in zip(own, wanted, strict=True)]


def _is_any(size: Given) -> bool:
    """Return whether a size is -1, which no symbol is."""
    return isinstance(size, int) and int(size) == -1


def _sliced(shape: list[Given], a: Mapping[str, Given]) -> Sequence[Given]:
    dim = a.get("dim", 0) % len(shape)
    shape[dim] = _count(shape[dim], a.get("start"), a.get("end"), a.get("step", 1))
    return shape


def _count(size: Given, start: Given, stop: Given, step: Given) -> Given:
    """Return the number of elements of a slice."""
    first, last, by = bounds(size, start, stop, step)
    return -((first - last) // by)


def _indexed(shape: list[Given], a: Mapping[str, Given]) -> Sequence[Given]:
    """Return the numbers of elements of the slices in an index."""
    index = a.get("index")
    parts = list(index) if isinstance(index, tuple) and index[:1] != ("slice",) else [index]
    taken = sum(one is not None and one is not ... for one in parts)
    dim, found = 0, list[Given]()
    for one in parts:
        if isinstance(one, tuple) and one[:1] == ("slice",):
            found.append(_count(shape[dim], *one[1:]))
        dim += len(shape) - taken if one is ... else one is not None
    return found


def bounds(size: Given, start: Given, stop: Given, step: Given) -> tuple[Given, Given, Given]:
    """Return the first index of a slice, the one after its last, and its step."""
    first = _within(size, 0 if start is None else start)
    is_open = stop is None or (type(stop) is int and stop >= END)
    last = size if is_open else _within(size, stop)
    if not is_open and start and last < first:
        last = first
    return first, last, 1 if step is None else step


def _within(size: Given, index: Given) -> Given:
    """Return an index from 0 to the size, negative ones counted from the end."""
    found = index + size if index < 0 else index
    return 0 if found < 0 else size if found > size else found


def _narrowed(shape: list[Given], a: Mapping[str, Given]) -> Sequence[Given]:
    shape[a["dim"] % len(shape)] = a["length"]
    return shape


def _repeated(shape: list[Given], a: Mapping[str, Given]) -> Sequence[Given]:
    times = a["repeats"]
    own = [1] * (len(times) - len(shape)) + shape
    return [n * m for n, m in zip(own, times, strict=True)]


def _permuted(shape: list[Given], a: Mapping[str, Given]) -> Sequence[Given]:
    return [shape[d] for d in a["dims"]]


_OF_ONE: Final = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view"), _viewed),
    "flatten": _flattened,
    "unflatten": _unflattened,
    "squeeze": _squeezed,
    "unsqueeze": _unsqueezed,
    **dict.fromkeys(("expand", "broadcast_to"), _expanded),
    **dict.fromkeys(("slice", "slice_scatter"), _sliced),
    "select_scatter": lambda shape, _: shape,
    "narrow": _narrowed,
    "repeat": _repeated,
    "getitem": _indexed,
}
_CUTS: Final = ("slice", "slice_scatter", "getitem")
"""Operators that may take every second element: that a size is divisible is a condition."""
