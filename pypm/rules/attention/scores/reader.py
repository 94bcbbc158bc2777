"""Reading tensors of a graph as expressions over indices: each element by its place."""

import torch

from pypm.fx import describe, metadata
from pypm.kernels.attention.expressions import Applied, Element, Name, Number, apply, size

LARGEST = 200
"""The most names, numbers and operators of an expression; what is longer is read as a tensor."""
WHOLE = (torch.int64, torch.int32)
"""Types of integers that count places without overflow."""
KINDS = {
    torch.bool: "bool",
    **dict.fromkeys(WHOLE, "int"),
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32, torch.float64), "float"),
}
"""Kinds by type. Narrower integers overflow, so what is made of them is read as a tensor."""
PLAIN = (
    bool, int, float, str, type(None), type(...),
    torch.device, torch.dtype, torch.layout, torch.memory_format,
)  # fmt: skip
"""Types of attributes that are known when a graph is read."""


class NotRead(Exception):
    """A node that is no expression: it is read as a tensor."""


class ScoreReader:
    """Reads elements of nodes as expressions.

    `leaves` are the nodes that are read as tensors, in the order of their numbers; `through` those
    that expressions replace.
    """

    def __init__(self, readers, sizes):
        """`readers` are functions by the names of operators; what has none is read as a tensor.

        Each takes this object, a node, its call, and the places in its value. `sizes` are those of
        the scores: batches, heads, queries and keys.
        """
        self.sizes = sizes
        self.leaves = []
        self.through = []
        self._readers = readers

    def element(self, node, places):
        """Return the element of a node at places: an expression for each of its dimensions."""
        leaves, through = len(self.leaves), len(self.through)
        try:
            found = self._computed(node, at_broadcast(places, known(node).shape))
            if size(found) > LARGEST:
                raise NotRead
        except NotRead:
            del self.leaves[leaves:], self.through[through:]
            return self.leaf(node, places)
        self.through.append(node)
        return found

    def leaf(self, node, places):
        """Return the element of a node that is read as a tensor."""
        places = at_broadcast(places, known(node).shape)
        if node not in self.leaves:
            self.leaves.append(node)
        return Element(self.leaves.index(node), places)

    def _computed(self, node, places):
        call = describe(node)
        name = call.operator.name
        if name == "literal":
            return number(call.attributes["value"])
        rule = self._readers.get(name)
        if rule is None or KINDS.get(metadata(node).dtype) is None:
            raise NotRead
        if not all(map(is_known, call.attributes.values())):
            raise NotRead
        return rule(self, node, call, places)

    def argument(self, value, places, kind=None):
        """Return an argument of an elementwise call at the places of the result.

        `kind` is what it is cast to: "bool", "int", "float", or None to leave it.
        """
        if not hasattr(value, "op"):
            found, given = number(value), None
        else:
            tensor = known(value)
            found = self.element(value, places[len(places) - tensor.dim() :])
            given = KINDS.get(tensor.dtype)
            if given is None:
                raise NotRead
        if kind is None or given == kind:
            return found
        if given is None and kind != "bool" and not isinstance(value, bool):
            return found
        return apply(kind, found)


def known(node):
    """Return what is known of a node's tensor."""
    found = metadata(node)
    if not isinstance(found, torch.Tensor):
        raise NotRead
    return found


def is_known(value):
    """Return whether an attribute is known: a tensor may stand for a number."""
    return all(map(is_known, value)) if isinstance(value, tuple) else isinstance(value, PLAIN)


def number(value):
    """Return a number as an expression."""
    if type(value) not in (bool, int, float) or value != value:
        raise NotRead
    return Number(value)


def at_broadcast(places, shape):
    """Return places in a tensor of this shape: 0 along dimensions of size 1."""
    # metadata of a tensor that is reshaped in place later may show its last shape
    if len(places) != len(shape) or not all(isinstance(n, int) for n in shape):
        raise NotRead
    return tuple(Number(0) if n == 1 else p for p, n in zip(places, shape, strict=True))


def is_index(x):
    """Return whether an expression is an integer that indices alone make."""
    match x:
        case Name(name):
            return name != "s"
        case Number(value):
            return type(value) is int
        case Applied("+" | "-" | "*" | "//" | "%" | "min" | "max" | "abs", operands):
            return all(map(is_index, operands))
    return False


def dtype_of(value):
    """Return the type of a tensor's node; None for a number."""
    known = metadata(value) if hasattr(value, "op") else None
    return getattr(known, "dtype", None)
