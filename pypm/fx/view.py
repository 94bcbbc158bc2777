"""A graph seen as terms: one occurrence a node, equal pure computations one term."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import fx

from pypm.core.guards import equal
from pypm.core.operators import CONS, LITERAL, NIL
from pypm.core.terms import UNDEFINED, Term, Terms
from pypm.fx.binding import metadata
from pypm.fx.calls import Argument, Call, describe, rank_of_dims
from pypm.fx.effects import is_pure, mutates
from pypm.fx.symbols import Symbolic, sizes

__all__ = ["ASSERTS_METADATA", "Derived", "Occurrence", "Symbolic", "View", "metadata"]

ASSERTS_METADATA: Final = torch.ops.aten._assert_tensor_metadata.default
"""Goes with the node it is about: `torch.export` puts it before every cast."""


class Occurrence:
    """A term at its place in the graph: its node, and the occurrences of its arguments.

    The node is None for a Python number among the arguments, and for a list of tensors.
    """

    __slots__ = ("children", "node", "term")

    def __init__(
        self, node: fx.Node | None, term: Term, children: tuple[Occurrence, ...] = ()
    ) -> None:
        self.node = node
        self.term = term
        self.children = children

    def __repr__(self) -> str:
        return f"Occurrence({self.node if self.node is not None else self.term})"


class View:
    """The terms of a graph, made when asked for; it never changes the graph.

    Equal pure nodes are one term. Where the graph writes memory, they must also have the same
    number of writes before them. Nodes with effects or randomness are terms of their own.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.terms = Terms()
        self.dead = _unused(graph)
        """Pure nodes that nothing uses: not looked at, and erased with the first rewrite."""
        self._occurrences: dict[fx.Node, Occurrence] = {}
        self._calls: dict[fx.Node, Call] = {}
        self._epochs: dict[fx.Node, int] = {}
        self._writes: int | None = None

    def occurrence(self, node: fx.Node) -> Occurrence:
        """The node as a subject of matching, with its arguments as they are now."""
        found = self._occurrences.get(node)
        if found is not None:
            return found
        todo = [node]
        while todo:  # no recursion: graphs can be deeper than Python's stack
            last = todo[-1]
            if last in self._occurrences:
                todo.pop()
                continue
            missing = [n for n in self.call(last).nodes if n not in self._occurrences]
            if missing:
                todo += missing
            else:
                self._occurrences[last] = self._make(last)
                todo.pop()
        return self._occurrences[node]

    def call(self, node: fx.Node) -> Call:
        """The node's call in its one spelling."""
        found = self._calls.get(node)
        if found is None:
            found = self._calls[node] = describe(node)
        return found

    def invalidate(self, nodes: Iterable[fx.Node]) -> None:
        """Forget what was computed for these nodes and for everything that depends on them."""
        todo = list(nodes)
        if any(mutates(node) for node in todo):
            self._epochs.clear()
            self._writes = None
        seen = set(todo)
        while todo:
            node = todo.pop()
            self._occurrences.pop(node, None)
            self._calls.pop(node, None)
            fresh = [user for user in node.users if user not in seen]
            seen.update(fresh)
            todo += fresh

    def epoch(self, node: fx.Node) -> int:
        """How many nodes before this one write memory."""
        if self._writes is None:
            self._writes = self._count_writes()
        if not self._writes:
            return 0
        start = node
        while start not in self._epochs and start.prev.op != "root":
            start = start.prev
        count = self._epochs.setdefault(start, 0)
        while start is not node:  # nodes put in since
            count += mutates(start)
            start = start.next
            self._epochs[start] = count
        return count

    def _count_writes(self) -> int:
        count = 0
        for node in self.graph.nodes:
            self._epochs[node] = count
            count += mutates(node)
        return count

    def users(self, node: fx.Node) -> list[fx.Node]:
        """The nodes that use its value: not those already replaced, nor assertions of its type."""
        return [
            user
            for user in node.users
            if user not in self.dead and user.target is not ASSERTS_METADATA
        ]

    def _make(self, node: fx.Node) -> Occurrence:
        call = self.call(node)
        if call.operator is LITERAL:
            return Occurrence(node, self._literal(call.attributes["value"]))
        children = tuple([self._argument(argument) for argument in call.arguments])
        attributes = self._key(node, call)
        terms = [child.term for child in children]
        derived = Derived(node, call)
        term = self.terms.make(call.operator, terms, attributes, derived)
        known = term.derived
        if isinstance(known, Derived) and known is not derived:
            if known.agrees(node):
                known.refresh(node)
            else:  # constants are literals whatever their dtype, but their users may show it
                attributes["@dtype"] = derived.get("dtype")
                term = self.terms.make(call.operator, terms, attributes, derived)
        return Occurrence(node, term, children)

    def _key(self, node: fx.Node, call: Call) -> dict[str, object]:
        """The attributes that make the term: the call's own, and when it may be called equal."""
        if node.op in {"placeholder", "get_attr"}:
            return call.attributes
        attributes = dict(call.attributes)
        if not is_pure(node):
            attributes["@node"] = node.name
        elif epoch := self.epoch(node):
            attributes["@epoch"] = epoch
        return attributes

    def _argument(self, argument: Argument) -> Occurrence:
        if isinstance(argument, fx.Node):
            return self._occurrences[argument]
        if not isinstance(argument, tuple):
            return Occurrence(None, self._literal(argument))
        cell = Occurrence(None, self.terms.make(NIL))
        for element in reversed(argument):
            first = self._argument(element)
            term = self.terms.make(CONS, (first.term, cell.term))
            cell = Occurrence(None, term, (first, cell))
        return cell

    def _literal(self, value: object) -> Term:
        derived = _NUMBER
        if isinstance(value, Symbolic):
            derived = _SYMBOLIC_NUMBER
        elif value is None or isinstance(value, str):
            derived = _NO_NUMBER
        return self.terms.make(LITERAL, (), {"value": value}, derived)


def _unused(graph: fx.Graph) -> set[fx.Node]:
    unused: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op.startswith("call_") and unused.issuperset(node.users) and is_pure(node):
            unused.add(node)
    return unused


_SYMBOLIC_NUMBER: Final[Mapping[str, object]] = {"numel": 1, "rank": 0, "shape": ()}
_NUMBER: Final[Mapping[str, object]] = {**_SYMBOLIC_NUMBER, "is_constant": True}
_NO_NUMBER: Final[Mapping[str, object]] = {"is_constant": True}


class Derived(Mapping[str, object]):
    """What a term's node says of its value: computed when asked for, UNDEFINED if not known.

    rank, shape, numel, dtype, device (a string), is_contiguous, is_constant, tags;
    and dimension_rank (the rank in which the operator's dimensions count; None if not known).
    """

    __slots__ = ("_call", "_known", "_node")

    def __init__(self, node: fx.Node, call: Call) -> None:
        self._node = node
        self._call = call
        self._known: dict[str, object] = {}

    def refresh(self, node: fx.Node) -> None:
        """Answer from another node of the same term, whose metadata may be more recent."""
        self._node = node
        self._known = {}

    def agrees(self, node: fx.Node) -> bool:
        """Whether the other node's value has the same dtype, as far as both are known."""
        ours, theirs = metadata(self._node), metadata(node)
        return getattr(ours, "dtype", None) == getattr(theirs, "dtype", None)

    def get(self, key: str, default: object = UNDEFINED) -> object:
        """The attribute, or the default where there is none of that name."""
        found = self._known.get(key, UNDEFINED)
        if found is UNDEFINED:
            found = self._known[key] = self._compute(key)
        return default if found is UNDEFINED else found

    def _compute(self, key: str) -> object:
        if key == "tags":
            return self._call.tags
        if key == "is_constant":
            return self._node.op == "get_attr"
        if key == "dimension_rank":
            name = self._call.operator.name
            found = rank_of_dims(name, self._call.arguments, self._node)
            return None if found is UNDEFINED else found
        if key not in _OF_TENSORS:
            return UNDEFINED
        value = metadata(self._node)
        if value is None:
            value = self._node.meta.get("tensor_meta")
        return _of_tensor(value, key)

    def __getitem__(self, key: str) -> object:
        found = self.get(key)
        if found is UNDEFINED:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[str]:
        names = ("is_constant", "tags", "dimension_rank", *_OF_TENSORS)
        return iter([name for name in names if self.get(name) is not UNDEFINED])

    def __len__(self) -> int:
        return len(list(iter(self)))


_OF_TENSORS: Final = ("rank", "shape", "numel", "dtype", "device", "is_contiguous")


def _of_tensor(value: Any, key: str) -> object:
    shape = getattr(value, "shape", None)
    if shape is None:
        return UNDEFINED
    match key:
        case "rank":
            return len(shape)
        case "shape":
            return sizes(shape)
        case "numel":
            count: Any = 1
            for n in sizes(shape):
                count = count * n
            return count
        case "dtype":
            return value.dtype
        case "device":
            found = getattr(value, "device", None)
            return UNDEFINED if found is None else found.type
        case _:
            return _is_contiguous(value)


def _is_contiguous(value: Any) -> object:
    """Contiguity by sizes and strides alone: asking the tensor could add a shape guard."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return UNDEFINED
        strides = sizes(value.stride())
    else:
        found = getattr(value, "stride", None)
        if found is None:
            return UNDEFINED
        strides = sizes(found)
    return _are_contiguous(sizes(value.shape), strides)


def _are_contiguous(shape: tuple[object, ...], strides: tuple[object, ...]) -> object:
    verdict: object = True
    expected: Any = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if equal(length, 0) is True:
            return True
        is_one, is_packed = equal(length, 1), equal(stride, expected)
        if is_one is False and is_packed is False:
            verdict = False
        elif is_one is not True and is_packed is not True and verdict is True:
            verdict = UNDEFINED
        expected = expected * length
    return verdict
