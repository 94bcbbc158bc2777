"""Lower bounds of the time that a region of a graph takes: its roofline."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Final

import torch
from torch import fx

from pypm.fx.operators.effects import is_pure
from pypm.roofline.demand import Demand, times
from pypm.roofline.flops import work_of
from pypm.roofline.machines import Hardware
from pypm.roofline.machines import hardware as hardware_named
from pypm.roofline.masks import Masks
from pypm.roofline.regions import BoundedRegion, Subject, dtype_of, region_of, tensors
from pypm.roofline.sizes import Amount, SizeHints, least
from pypm.roofline.viewed_memory import Reached

__all__ = ["Bound", "bound"]


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time that a region takes on some hardware, and the reason."""

    flops: Mapping[str, Amount]
    """FLOPs by unit: products by the type of their operands ("bfloat16"), and "vector"."""
    bytes: Amount
    """Bytes that are read from inputs and weights, and written to results."""
    compute_seconds: float
    """The largest of FLOPs / rate over the units."""
    memory_seconds: float
    """Bytes / bandwidth."""
    hardware: str
    """The name of the hardware."""
    hints: Mapping[str, int] = field(default_factory=dict)
    """The values of symbolic sizes for which the seconds are; empty if all sizes are numbers."""
    unknown: tuple[str, ...] = ()
    """Operators whose work is not known. They count as none, so the bound remains one."""

    @property
    def seconds(self) -> float:
        """Return the bound."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def limited_by(self) -> str:
        """Return "compute" or "memory": the larger of both times."""
        return "compute" if self.compute_seconds > self.memory_seconds else "memory"

    def __str__(self) -> str:
        text = f"{self.seconds:.3g} s on {self.hardware}, limited by {self.limited_by}"
        if self.hints:
            text += f", for {', '.join(f'{name} = {n}' for name, n in self.hints.items())}"
        return text


def bound(region: Subject, hardware: Hardware | str, *, typical: bool = False) -> Bound:
    """Return a lower bound of the time of the function that a region computes.

    Arguments:
        region: a graph module or graph with metadata, an exported program, or nodes of one graph:
            a region whose inputs are the values that it reads from outside, and whose results are
            the values that are used outside.
        hardware: hardware, or the name of a shipped one.
        typical: count what data decides as in most data: indices differ, and masks hide nothing.
            The result is then no bound for all data. By default indices may be equal, and masks
            from data may hide everything.

    The time is the larger of work / rate and bytes / bandwidth, as if both overlapped perfectly.

    Work is that of products on matrix units, and one operation on vector units for each exponential
    of a softmax. Products count as the region has them, but not for results that nothing uses, nor
    behind masks: causal, or computed from positions alone. A product counts with the rate of the
    narrowest type that its operands were computed from, as a kernel may convert later. What depends
    on weights alone counts as none.

    Bytes are those of inputs, weights and results, each memory once: an expanded view counts with
    the memory under it, a slice with its elements, a gather with the rows that it needs. Values
    inside of the region count as none. An update of a part of an input counts with that part.

    Symbolic sizes stay symbolic in `flops` and `bytes`; `seconds` are for the graph's example
    sizes, which `hints` gives. No guard is added. Raises PyPMError if the region is none, its nodes
    have no metadata, or the hardware is not known.
    """
    device = hardware_named(hardware) if isinstance(hardware, str) else hardware
    found = region_of(region)
    hints = SizeHints.of([*found.nodes, *_sources(found)])
    masks = Masks(found, hints, Fraction(typical))
    demand = Demand(found, masks, typical=typical)
    flops, unknown = _flops(found, masks, demand)
    moved = _bytes(found, demand)
    rates = {unit: device.vector if unit == VECTOR else device.rate(unit) for unit in flops}
    compute = max((hints.value(n) / rates[unit] for unit, n in flops.items()), default=0.0)
    count = hints.value(moved)
    return Bound(
        MappingProxyType(flops),
        moved,
        compute,
        count / device.bandwidth(count),
        device.name,
        MappingProxyType(hints.assumed([*flops.values(), moved])),
        unknown,
    )


def _sources(region: BoundedRegion) -> Iterator[fx.Node]:
    for node in region.nodes:
        yield from node.all_input_nodes


# --- work ----------------------------------------------------------------------------------------

VECTOR: Final = "vector"


def _flops(
    region: BoundedRegion, masks: Masks, demand: Demand
) -> tuple[dict[str, Amount], tuple[str, ...]]:
    """Return the FLOPs by unit, and the operators that are not known."""
    flops: dict[str, Amount] = {}
    unknown: dict[str, None] = {}
    narrow = _narrowest(region)
    equal: dict[fx.Node, fx.Node] = {}
    seen: dict[Hashable, fx.Node] = {}
    for node in region.nodes:
        call = region.operations[node]
        if node in region.fixed or not _is_first(node, equal, seen):
            continue
        work = work_of(call, node)
        if work is None:
            unknown[call.name] = None
            continue
        share = demand.shares.get(node, Fraction(1)) * masks.seen_in(node).pairs
        unit = _unit([narrow.get(n) or dtype_of(n) for n in work.operands])
        for name, count in ((unit, work.products), (VECTOR, work.vector)):
            done = times(count, share)
            if done != 0:
                flops[name] = flops.get(name, 0) + done
    return flops, tuple(unknown)


def _is_first(node: fx.Node, equal: dict[fx.Node, fx.Node], seen: dict[Hashable, fx.Node]) -> bool:
    """Return whether no earlier node computes the same; both tables are kept up to date."""
    if not is_pure(node):
        return True
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: equal.get(n, n))
    key = (node.op, node.target, repr(args), repr(kwargs))
    first = equal[node] = seen.setdefault(key, node)
    return first is node


def _narrowest(region: BoundedRegion) -> dict[fx.Node, torch.dtype]:
    """Return the narrowest type that each value was computed from, itself included."""
    found: dict[fx.Node, torch.dtype] = {}
    for node in (*_sources(region), *region.nodes):
        is_inside = node in region.inside
        kinds = [found[n] for n in node.all_input_nodes if is_inside and n in found]
        own = dtype_of(node)
        kinds += [own] if own is not None and _is_factor(own) else []
        if kinds:
            found[node] = min(kinds, key=lambda kind: kind.itemsize)
    return found


def _is_factor(kind: torch.dtype) -> bool:
    return kind.is_floating_point or kind.is_complex or kind in (torch.int8, torch.uint8)


def _unit(kinds: list[torch.dtype | None]) -> str:
    """Return the name of the type that a unit must have for products of some operands."""
    widest = max((kind for kind in kinds if kind), key=lambda kind: kind.itemsize, default=None)
    if widest is None:
        return VECTOR
    if widest.is_complex:
        widest = widest.to_real()
    name = str(widest).removeprefix("torch.").removeprefix("u")
    return "float8" if name.startswith("float8") else name


# --- bytes ---------------------------------------------------------------------------------------


def _bytes(region: BoundedRegion, demand: Demand) -> Amount:
    total: Amount = 0
    for root, count in demand.reads.items():
        if root not in region.inside:
            total = total + count * _size(root)
    for root, count in demand.writes.items():
        total = total + count * _size(root)
    for node, count in demand.in_place.values():
        total = total + count * _size(node)
    return total + _folded(region, demand)


def _size(node: fx.Node) -> int:
    return min((value.dtype.itemsize for value in tensors(node)), default=0)


def _folded(region: BoundedRegion, demand: Demand) -> Amount:
    """Return the bytes of what is computed from weights alone, in its smallest form."""
    total: Amount = 0
    used = {root for root in demand.reads if root not in region.inside}
    for root, count in demand.reads.items():
        if root in region.fixed and count != 0:
            leaves = set(_leaves(root, region))
            if leaves.isdisjoint(used):
                used |= leaves
                total = total + least(count * _size(root), *_smallest(root, region, leaves))
    return total


def _leaves(node: fx.Node, region: BoundedRegion) -> Iterator[fx.Node]:
    for source in node.all_input_nodes:
        if source in region.inside:
            yield from _leaves(source, region)
        else:
            yield source


def _smallest(root: fx.Node, region: BoundedRegion, leaves: set[fx.Node]) -> list[Amount]:
    """Return the bytes of the weights, and of each value on a single path from them."""
    sizes = [sum((_memory(leaf) for leaf in leaves), 0)]
    node = root
    while node in region.inside and len(node.all_input_nodes) == 1:
        sizes.append(_memory(node))
        node = node.all_input_nodes[0]
    return sizes


def _memory(node: fx.Node) -> Amount:
    counts = [Reached.by(value).count * value.dtype.itemsize for value in tensors(node)]
    return sum(counts[1:], counts[0]) if counts else 0
