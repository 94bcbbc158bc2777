"""Estimates of what a graph takes on a CPU: by bytes, by elements, and by FLOPs of products.

They say what is worth to be measured, and what is slower for certain; no gain rests on them alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache
from math import prod
from typing import Final

import torch
from torch import Tensor, fx

from pypm.fx.values.symbolic import hint
from pypm.roofline.flops import work_of
from pypm.roofline.fusion import allocated, is_alias, kernels
from pypm.roofline.regions import dtype_of, operation, tensors
from pypm.roofline.sizes import SizeHints
from pypm.timing import shortest

__all__ = ["fused_seconds", "graph_seconds", "has_products"]

SECONDS: Final = 0.02
"""The time for which a rate is measured."""
SIDE: Final = 512
"""The rows and columns of matrices whose product is measured."""
ELEMENTS: Final = 2**15
"""Elements of a tensor that a second cache holds."""
LARGEST: Final = 26
"""The exponent of the number of bytes from which no more are moved in a second."""
KEPT: Final = 2**22
"""Bytes below which what was free before is taken for a result."""
NEW: Final = 2**26
"""Bytes of which C's library asks the system at each allocation."""
CALL: Final = 1e-6
"""Seconds to call a kernel."""
_SLOW: Final = frozenset(
    {"exp", "exp2", "expm1", "log", "log2", "log1p", "log10", "tanh", "sigmoid", "erf", "erfc"}
    | {"sin", "cos", "tan", "pow", "softmax", "_softmax", "log_softmax", "_log_softmax", "gelu"}
    | {"silu", "asin", "acos", "atan", "sinh", "cosh"}
)
"""Operators that compute an exponential, or what takes as long, of each element."""


def graph_seconds(graph: fx.Graph) -> float:
    """Return what the kernels of a graph take, products at the rate of large ones.

    The graph has metadata. Sizes are taken at their hints.
    """
    hints = SizeHints.of([*graph.nodes])
    return sum(CALL + _kernel_seconds(nodes, hints) for nodes in kernels(graph))


def has_products(nodes: Collection[fx.Node]) -> bool:
    """Return whether some calls multiply matrices, or it is not known what they do."""
    found = (work_of(operation(node), node) for node in nodes)
    return any(work is None or work.products != 0 for work in found)


def _kernel_seconds(nodes: Collection[fx.Node], hints: SizeHints) -> float:
    products = 0.0
    for node in nodes:
        work = work_of(operation(node), node)
        if work is not None and work.products != 0:
            products += hints.value(work.products) / _products_per_second(
                dtype_of(node), torch.get_num_threads()
            )
    return products or fused_seconds(nodes)


def fused_seconds(nodes: Collection[fx.Node]) -> float:
    """Return what one kernel that computes some nodes without products takes.

    Large results are in memory that is new. Most kernels take half of that.
    """
    inside = frozenset(nodes)
    calls = [node for node in inside if not is_alias(node)]
    sources = {source for node in calls for source in node.all_input_nodes}
    read = [source for source in sources if allocated(source) not in inside]
    written = [node for node in calls if not inside.issuperset(node.users)]
    made = _bytes(written)
    cleared = made * _to_clear(torch.get_num_threads()) if made >= KEPT else 0.0
    return cleared + _seconds_to_move(_bytes(read) + made) + sum(map(_seconds_to_compute, calls))


def _bytes(nodes: Iterable[fx.Node]) -> int:
    return sum(_elements(x) * x.dtype.itemsize for node in nodes for x in tensors(node))


def _seconds_to_compute(node: fx.Node) -> float:
    """Return what one operator takes on elements that lie in a cache."""
    values = [x for each in (node, *node.all_input_nodes) for x in tensors(each)]
    name = operation(node).name.rpartition(".")[2]
    return max(map(_elements, values), default=0) * _of_an_element(
        name in _SLOW, torch.get_num_threads()
    )


def _elements(tensor: Tensor) -> int:
    """Return the number of elements, those that lie in one place counted once."""
    sizes = [
        hint(n) for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0
    ]
    return prod(int(n) for n in sizes if n is not None)


# --- rates ---------------------------------------------------------------------------------------


def _seconds_to_move(size: int) -> float:
    """Return the time to read half of some bytes and write the other half."""
    power = max(size, 1).bit_length()
    copied = _copied(min(power, LARGEST), torch.get_num_threads())
    return size / (1 << min(power, LARGEST)) * copied


@cache
def _copied(power: int, threads: int) -> float:
    source = torch.zeros(1 << power >> 1, dtype=torch.uint8)
    target = torch.zeros_like(source)
    return shortest(lambda: target.copy_(source), SECONDS)


@cache
def _to_clear(threads: int) -> float:
    """Return the seconds that a byte of new memory takes more than one that was written before."""
    old = torch.zeros(NEW, dtype=torch.uint8)
    new = shortest(lambda: torch.zeros(NEW, dtype=torch.uint8).fill_(1), SECONDS)
    return max(0.0, new - shortest(lambda: old.fill_(1), SECONDS)) / NEW


@cache
def _of_an_element(is_slow: bool, threads: int) -> float:
    x = torch.full((ELEMENTS,), 0.5)
    return shortest(x.exp if is_slow else x.neg_, SECONDS) / ELEMENTS


@cache
def _products_per_second(dtype: torch.dtype | None, threads: int) -> float:
    """Return the FLOP/s of a product of large matrices; of integers, those of float32."""
    is_real = dtype is not None and dtype.is_floating_point and dtype.itemsize > 1
    x = torch.ones(SIDE, SIDE, dtype=dtype if is_real else torch.float32)
    return 2 * SIDE**3 / shortest(lambda: x @ x, SECONDS)
