"""Blocks of a mask that are empty, full or partial, decided by interval arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, assert_never

import torch
from torch import Tensor

from pypm.kernels.attention.expressions import (
    Applied,
    Element,
    Expression,
    Name,
    Number,
    elements,
    evaluate,
    names,
)

__all__ = ["EMPTY", "FULL", "PARTIAL", "Blocks", "decide"]

EMPTY: Final = 0
PARTIAL: Final = 1
FULL: Final = 2
_AT_ONCE: Final = 1 << 22
"""The most elements that are evaluated at once."""

Sizes: TypeAlias = tuple[int, int, int, int]
"""Sizes of the scores: batches, heads, queries, keys."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A mask by its blocks."""

    kinds: Tensor
    """EMPTY, PARTIAL or FULL: int8 [B or 1, H or 1, blocks of queries, blocks of keys]."""
    hidden: Tensor | None
    """True for each query that sees no key, [B or 1, H or 1, S, 1]; None if there is none."""
    share: float
    """The share of blocks that are not empty."""


class _Range(NamedTuple):
    """Bounds of a value in each block; tensors that broadcast to the blocks."""

    low: Tensor
    high: Tensor
    is_tight: Tensor
    """True where both bounds are values that the block holds."""
    reads: frozenset[str]


def decide(
    visible: Expression, sizes: Sizes, block: tuple[int, int], tensors: Sequence[Tensor] = ()
) -> Blocks:
    """Return the blocks of a mask.

    Arguments:
        visible: the mask, an expression over the indices b, h, q, k and elements of tensors.
        sizes: batches, heads, queries and keys; none of them 0.
        block: queries and keys of a block; the last blocks may hold fewer.
        tensors: the tensors that the mask reads, by number.

    Each block has its exact kind: those that bounds do not decide are evaluated by themselves.
    """
    return _Decision(visible, sizes, block, tensors).blocks()


class _Decision:
    def __init__(
        self,
        visible: Expression,
        sizes: Sizes,
        block: tuple[int, int],
        tensors: Sequence[Tensor],
    ) -> None:
        self.visible, self.block, self.tensors = visible, block, tensors
        self.device = tensors[0].device if tensors else torch.device("cpu")
        read = names(visible)
        batches, heads = (sizes[i] if "bh"[i] in read else 1 for i in (0, 1))
        self.sizes = (batches, heads, *sizes[2:])
        self.steps = (1, 1, *block)
        self.counts = tuple(
            -(-size // step) for size, step in zip(self.sizes, self.steps, strict=True)
        )
        self._known: dict[Expression, _Range] = {}

    def blocks(self) -> Blocks:
        low, high, is_tight, _ = self._bounds()
        low, high = (x.bool().expand(self.counts) for x in (low, high))
        kinds = torch.where(low, FULL, torch.where(high, PARTIAL, EMPTY)).to(torch.int8)
        undecided = high & ~low & ~is_tight.expand(self.counts)
        for places, seen in self.evaluated(undecided):
            every, some = seen.flatten(1).all(1), seen.flatten(1).any(1)
            found = torch.where(every, FULL, torch.where(some, PARTIAL, EMPTY))
            kinds[places] = found.to(torch.int8)
        return Blocks(kinds, self.hidden(kinds), float((kinds != EMPTY).float().mean()))

    def hidden(self, kinds: Tensor) -> Tensor | None:
        """Return which queries see no key."""
        is_full = (kinds == FULL).any(-1)
        if bool(is_full.all()):
            return None
        queries = self.sizes[2]
        seen = is_full.repeat_interleave(self.block[0], -1)
        for places, visible in self.evaluated((kinds == PARTIAL) & ~is_full[..., None]):
            rows = places[2][:, None] * self.block[0] + torch.arange(self.block[0])
            here = visible.any(2)
            b, h = (place[:, None].expand_as(here)[here] for place in places[:2])
            seen[b, h, rows[here]] = True
        hidden = ~seen[..., :queries, None]
        return hidden if bool(hidden.any()) else None

    def evaluated(self, wanted: Tensor) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
        """Yield places of blocks, and their elements [places, queries, keys].

        What lies past the last query or key repeats these.
        """
        rows, columns = self.block
        found, most = wanted.nonzero(), max(1, _AT_ONCE // (rows * columns))
        for start in range(0, len(found), most):
            places = found[start : start + most]
            b, h, i, j = (place.view(-1, 1, 1) for place in places.unbind(1))
            q = (i * rows + torch.arange(rows).view(1, -1, 1)).clamp(max=self.sizes[2] - 1)
            k = (j * columns + torch.arange(columns)).clamp(max=self.sizes[3] - 1)
            seen = evaluate(self.visible, {"b": b, "h": h, "q": q, "k": k}, self.tensors)
            shape = (len(places), rows, columns)
            yield places.unbind(1), torch.as_tensor(seen).bool().expand(shape)

    def _bounds(self) -> _Range:
        """Return the bounds of the mask; those of any mask, if it reads what is not a number."""
        for x in elements(self.visible):
            tensor = self.tensors[x.tensor]
            if tensor.is_floating_point() and bool(tensor.isnan().any()):
                true = torch.tensor(True)
                return _Range(~true, true, ~true, frozenset())
        return self.range(self.visible)

    # --- bounds ----------------------------------------------------------------------------------

    def range(self, x: Expression) -> _Range:
        if x not in self._known:
            self._known[x] = self._range(x)
        return self._known[x]

    def _range(self, x: Expression) -> _Range:
        match x:
            case Name(name):
                return self._index("bhqk".index(name), name)
            case Number(value):
                number = torch.tensor(value)
                return _Range(number, number, torch.tensor(True), frozenset())
            case Element():
                return self._element(x)
            case Applied("where", (condition, one, other)):
                return _either(*map(self.range, (condition, one, other)))
            case Applied(name, operands):
                return _applied(name, [self.range(operand) for operand in operands])
            case _:
                assert_never(x)

    def _index(self, dim: int, name: str) -> _Range:
        low = torch.arange(self.counts[dim]) * self.steps[dim]
        high = (low + self.steps[dim] - 1).clamp(max=self.sizes[dim] - 1)
        shape = [1] * 4
        shape[dim] = -1
        return _Range(low.view(shape), high.view(shape), torch.tensor(True), frozenset({name}))

    def _element(self, x: Element) -> _Range:
        """Return bounds of elements: of each block, if every index is a name or a number."""
        tensor = self.tensors[x.tensor]
        if tensor.dtype == torch.bool:
            numbers = self._bounds_of(x, tensor.to(torch.uint8))
            return numbers._replace(low=numbers.low.bool(), high=numbers.high.bool())
        return self._bounds_of(x, tensor)

    def _bounds_of(self, x: Element, tensor: Tensor) -> _Range:
        named = [i.name for i in x.indices if isinstance(i, Name)]
        is_plain = all(isinstance(i, Name | Number) for i in x.indices)
        if not is_plain or len({*named}) != len(named):
            reads = names(x)
            if tensor.numel() == 0:
                raise IndexError("an element of an empty tensor")
            low, high = tensor.aminmax()
            return _Range(low, high, torch.tensor(False), reads)
        places = [int(i.value) if isinstance(i, Number) else slice(None) for i in x.indices]
        tensor = tensor[tuple(places)].permute([named.index(n) for n in _NAMES if n in named])
        for dim, name in enumerate(_NAMES):
            if name not in named:
                tensor = tensor.unsqueeze(dim)
            elif name in "bh":
                tensor = tensor.narrow(dim, 0, self.sizes[dim])
        low = high = tensor
        for dim in (2, 3):
            if tensor.shape[dim] > 1 or _NAMES[dim] in named:
                low, high = self._reduced(low, dim).amin(-1), self._reduced(high, dim).amax(-1)
                low, high = low.movedim(-1, dim), high.movedim(-1, dim)
        return _Range(low, high, torch.tensor(True), frozenset(named))

    def _reduced(self, x: Tensor, dim: int) -> Tensor:
        """Return x with this dimension last, as blocks [..., blocks, elements of a block]."""
        count, step = self.counts[dim], self.steps[dim]
        places = torch.arange(count * step, device=x.device).clamp(max=self.sizes[dim] - 1)
        moved: Tensor = x.movedim(dim, -1)[..., places]
        return moved.reshape(*moved.shape[:-1], count, step)


_NAMES: Final = "bhqk"


def _is_apart(*ranges: _Range) -> bool:
    """Return whether values depend on different indices, so that each may be anything it can."""
    read = [name for found in ranges for name in found.reads]
    return len(read) == len({*read})


def _all_tight(*ranges: _Range) -> Tensor:
    tight = torch.tensor(_is_apart(*ranges))
    for found in ranges:
        tight = tight & found.is_tight
    return tight


def _applied(name: str, given: Sequence[_Range]) -> _Range:
    reads = frozenset().union(*(found.reads for found in given))
    rule = _RULES.get(name)
    found = None if rule is None else rule(*given)
    if found is None:  # not bounded
        bound = torch.tensor(torch.inf)
        return _Range(-bound, bound, torch.tensor(False), reads)
    return _Range(*found, reads)


_Bounds: TypeAlias = tuple[Tensor, Tensor, Tensor]


def _sum(a: _Range, b: _Range) -> _Bounds:
    return a.low + b.low, a.high + b.high, _all_tight(a, b)


def _difference(a: _Range, b: _Range) -> _Bounds:
    return a.low - b.high, a.high - b.low, _all_tight(a, b)


def _product(a: _Range, b: _Range) -> _Bounds:
    corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    low = torch.minimum(torch.minimum(*corners[:2]), torch.minimum(*corners[2:]))
    high = torch.maximum(torch.maximum(*corners[:2]), torch.maximum(*corners[2:]))
    return low, high, _all_tight(a, b)


def _quotient(a: _Range, b: _Range) -> _Bounds | None:
    if b.reads or b.low.dim() or not b.low > 0:
        return None
    return a.low // b.low, a.high // b.low, a.is_tight


def _remainder(a: _Range, b: _Range) -> _Bounds | None:
    if b.reads or b.low.dim() or not b.low > 0:
        return None
    is_one = a.low // b.low == a.high // b.low
    low = torch.where(is_one, a.low % b.low, torch.zeros_like(a.low))
    high = torch.where(is_one, a.high % b.low, b.low - 1)
    return low, high, a.is_tight & is_one


def _magnitude(a: _Range) -> _Bounds:
    crosses = (a.low < 0) & (a.high > 0)
    one, other = a.low.abs(), a.high.abs()
    low = torch.where(crosses, torch.zeros_like(one), torch.minimum(one, other))
    return low, torch.maximum(one, other), a.is_tight & ~crosses


def _lesser(a: _Range, b: _Range) -> _Bounds:
    return torch.minimum(a.low, b.low), torch.minimum(a.high, b.high), _all_tight(a, b)


def _greater(a: _Range, b: _Range) -> _Bounds:
    return torch.maximum(a.low, b.low), torch.maximum(a.high, b.high), _all_tight(a, b)


def _below(a: _Range, b: _Range) -> _Bounds:
    return a.high < b.low, a.low < b.high, _all_tight(a, b)


def _at_most(a: _Range, b: _Range) -> _Bounds:
    return a.high <= b.low, a.low <= b.high, _all_tight(a, b)


def _equal(a: _Range, b: _Range) -> _Bounds:
    low = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    high = (a.low <= b.high) & (b.low <= a.high)
    ends = [x == y for x in (a.low, a.high) for y in (b.low, b.high)]
    meet = (ends[0] | ends[1]) | (ends[2] | ends[3])
    return low, high, _all_tight(a, b) & meet


def _inverse(a: _Bounds) -> _Bounds:
    low, high, tight = a
    return ~high, ~low, tight


def _and(a: _Range, b: _Range) -> _Bounds:
    tight = torch.where(a.low, b.is_tight, torch.where(b.low, a.is_tight, _all_tight(a, b)))
    return a.low & b.low, a.high & b.high, tight


def _or(a: _Range, b: _Range) -> _Bounds:
    tight = torch.where(a.high, torch.where(b.high, _all_tight(a, b), a.is_tight), b.is_tight)
    return a.low | b.low, a.high | b.high, tight


def _either(condition: _Range, a: _Range, b: _Range) -> _Range:
    true, false = condition.low, ~condition.high
    low = torch.where(true, a.low, torch.where(false, b.low, torch.minimum(a.low, b.low)))
    high = torch.where(true, a.high, torch.where(false, b.high, torch.maximum(a.high, b.high)))
    tight = torch.where(
        true, a.is_tight, torch.where(false, b.is_tight, _all_tight(condition, a, b))
    )
    return _Range(low, high, tight, condition.reads | a.reads | b.reads)


_ZERO: Final = _Range(torch.tensor(0), torch.tensor(0), torch.tensor(True), frozenset())

_RULES: Final[Mapping[str, Callable[..., _Bounds | None]]] = {
    "+": _sum,
    "-": _difference,
    "*": _product,
    "//": _quotient,
    "%": _remainder,
    "abs": _magnitude,
    "min": _lesser,
    "max": _greater,
    "<": _below,
    "<=": _at_most,
    ">": lambda a, b: _below(b, a),
    ">=": lambda a, b: _at_most(b, a),
    "==": _equal,
    "!=": lambda a, b: _inverse(_equal(a, b)),
    "&": _and,
    "|": _or,
    "not": lambda a: _inverse(a[:3]),
    "bool": lambda a: _inverse(_equal(a, _ZERO)),
    "int": lambda a: (a.low.long(), a.high.long(), a.is_tight),
    "float": lambda a: (a.low.float(), a.high.float(), a.is_tight),
}
"""Bounds of each operator from those of its operands; None where these do not bound it."""
