"""A graph as terms: one occurrence for each node; equal pure computations are one term."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

import torch
from torch import fx

from pypm.core.operators import CONS, LITERAL, NIL, Operator
from pypm.core.terms import DERIVED, Term, Terms, Unmade, Value, attribute_of
from pypm.fx.operators.arguments import Argument
from pypm.fx.operators.canonical_calls import bare_attributes, children, direct_call
from pypm.fx.operators.effects import effects, is_border, is_pure, is_sure_view, only_computes
from pypm.fx.operators.known_effects import RESHAPING
from pypm.fx.operators.targets import resolve
from pypm.fx.subject.calls import CanonicalCall, describe
from pypm.fx.subject.index_states import StateReader, States
from pypm.fx.subject.memory import is_written, may_be_view, shared, sharers, written
from pypm.fx.subject.term_properties import Derived
from pypm.fx.values.tensor_properties import literal_properties
from pypm.match.index import Index, State
from pypm.match.search_state import Subject

__all__ = ["ASSERTS_METADATA", "Occurrence", "View", "node_of"]

ASSERTS_METADATA: Final = torch.ops.aten._assert_tensor_metadata.default
"""An assertion that goes with its argument: `torch.export` inserts one before every cast."""


class Occurrence(Unmade):
    """The occurrence of a term in the graph: its node, and the occurrences of its arguments.

    The node is None for a Python number among the arguments, and for a list of tensors. Arguments
    and terms are created on demand.
    """

    __slots__ = ("_argument", "_children", "_derived", "_term", "_view", "node", "state")

    def __init__(self, view: View, argument: Argument, state: State) -> None:
        self.node = argument if isinstance(argument, fx.Node) else None
        self.state = state
        self._view = view
        self._argument = argument
        self._children: tuple[Occurrence, ...] | None = None
        self._derived: Derived | None = None
        self._term: Term | None = None

    @property
    def operator(self) -> Operator:
        if self.node is not None:
            plain = direct_call(self.node.target)
            return self._view.call(self.node).operator if plain is None else plain.overload.operator
        if isinstance(self._argument, tuple):
            return CONS if self._argument else NIL
        return LITERAL

    @property
    def children(self) -> tuple[Occurrence, ...]:
        if self._children is None:
            self._children = self._view.children(self._argument)
        return self._children

    @property
    def is_made(self) -> bool:
        return self._term is not None

    @property
    def term(self) -> Term:
        todo = [self]
        while self._term is None:  # no recursion: graphs can be deeper than Python's stack
            last = todo[-1]
            missing = [child for child in last.children if child._term is None]
            if missing:
                todo += missing
                continue
            todo.pop()
            if last._term is None:
                terms = [child.term for child in last.children]
                last._term = self._view.make(last._argument, terms)
        return self._term

    def attribute(self, name: str) -> Value:
        """Return `term.attribute(name)`; a call's term and those below it are not created."""
        if self._term is None and self.node is not None:
            if self._derived is None:
                self._derived = Derived(self._view, self.node)
            if name in DERIVED and direct_call(self.node.target) is not None:
                return self._derived.get(name)
            known = bare_attributes(self.node)
            if known is not None:
                return attribute_of(name, known, self._derived)
            call = self._view.call(self.node)
            if call.operator is not LITERAL:
                return attribute_of(name, call.attributes, self._derived)
        return self.term.attribute(name)

    def __repr__(self) -> str:
        return f"Occurrence({self._argument})"


def node_of(subject: Subject) -> fx.Node | None:
    """Return the node of a subject; None for a number, a list, and a term outside of graphs."""
    return subject.node if isinstance(subject, Occurrence) else None


class View:
    """A graph as subjects of matching, created on demand; the view never changes the graph.

    Equal pure nodes are one term. If the graph writes memory or changes modes, they must also lie
    in the same epoch, that is between the same borders, and have values that nothing writes. Nodes
    with effects or randomness are terms of their own.
    """

    def __init__(self, graph: fx.Graph, reader: StateReader | None = None) -> None:
        self.graph = graph
        self.terms = Terms()
        self.dead: set[fx.Node] = set()
        """Pure nodes without users: not visited, and erased with the first rewrite."""
        self.equal: dict[fx.Node, tuple[fx.Node, ...]] = {}
        """Nodes that were looked up, each with the nodes of the same term: see `equal_nodes`."""
        self.plain: set[fx.Node] = set()
        """Nodes that neither are nor lead to a call that observes strides or may be a view."""
        self.differentiated: set[fx.Node] = set()
        """Nodes at which a gradient was found to arrive; no legal rewrite stops one."""
        self.memory: dict[object, object] = {}
        """Findings about the graph as it is, by keys of their readers; no change leaves any."""
        self._occurrences: dict[fx.Node, Occurrence] = {}
        self._calls: dict[fx.Node, CanonicalCall] = {}
        self._epochs: dict[fx.Node, int] = {}
        self._borders: int | None = None
        self._written: dict[fx.Node, bool] = {}
        self._reshaping: list[fx.Node] = []
        self.states = States(reader or StateReader(Index()), self.call)
        starts, unused = self.states.read(graph)
        self.dead.update(_unused(unused))
        self.starts = self._living(starts)
        """The nodes at which some pattern may match, as the graph was when it was read."""

    def read_by(self, reader: StateReader) -> None:
        """Compute all states anew, in the index of another reader."""
        self.states = States(reader, self.call)
        self.starts = self._living(self.states.read(self.graph)[0])
        self._occurrences.clear()

    def _living(self, nodes: Iterable[fx.Node]) -> list[fx.Node]:
        return [node for node in nodes if node.op.startswith("call_") and node not in self.dead]

    def occurrence(self, node: fx.Node) -> Occurrence:
        """Return the node as a subject of matching, with its present arguments."""
        found = self._occurrences.get(node)
        if found is None:
            found = self._occurrences[node] = Occurrence(self, node, self.states[node])
        return found

    def children(self, argument: Argument) -> tuple[Occurrence, ...]:
        """Return the children of the occurrence of `argument`."""
        if isinstance(argument, fx.Node):
            arguments = children(argument) or self.call(argument).arguments
            return tuple([self._argument(a) for a in arguments])
        if isinstance(argument, tuple) and argument:
            return self._argument(argument[0]), self._argument(argument[1:])
        return ()

    def _argument(self, argument: Argument) -> Occurrence:
        if isinstance(argument, fx.Node):
            return self.occurrence(argument)
        return Occurrence(self, argument, self.states.of(argument))

    def operator(self, node: fx.Node) -> tuple[str, frozenset[str]]:
        """Return the name of a node's operator, and its classes."""
        plain = direct_call(node.target)
        if plain is not None:
            return plain.overload.packet_name, plain.overload.tags
        call = self.call(node)
        return call.operator.name, call.tags

    def call(self, node: fx.Node) -> CanonicalCall:
        """Return the node's call in canonical form."""
        found = self._calls.get(node)
        if found is None:
            found = self._calls[node] = describe(node)
        return found

    def invalidate(self, nodes: Iterable[fx.Node]) -> None:
        """Discard what was computed for these nodes and for everything that depends on them."""
        todo = list(nodes)
        self.equal.clear()
        self.memory.clear()
        if any(is_border(node) or self._written.get(node) for node in todo):
            self._epochs.clear()
            self._borders = None
        for node in todo:
            self._calls.pop(node, None)
        self.states.refresh(todo)
        seen = set(todo)
        while todo:
            node = todo.pop()
            for user in node.users:
                # What was never made has no users that were made from it.
                if user not in seen and self._occurrences.pop(user, None) is not None:
                    seen.add(user)
                    todo.append(user)
        for node in seen:
            self._occurrences.pop(node, None)

    def keep_plain(
        self,
        new: Collection[fx.Node],
        readers: Collection[fx.Node],
        reads_strides: Callable[[fx.Node], bool],
    ) -> None:
        """Count new nodes among the plain ones; if one is not, forget which are.

        `readers` are the old nodes that read other nodes than before.
        """
        ours = {*new}
        if self.plain.issuperset(readers) and all(
            not may_be_view(node)
            and not reads_strides(node)
            and all(n in ours or n in self.plain for n in self.users(node))
            for node in new
        ):
            self.plain |= ours
        else:
            self.plain.clear()

    def epoch(self, node: fx.Node) -> int:
        """Return the number of borders before a node: writes, changes of mode, unknown calls."""
        if not self.has_borders:
            return 0
        start = node
        while start not in self._epochs and start.prev.op != "root":
            start = start.prev
        count = self._epochs.setdefault(start, 0)
        while start is not node:  # nodes put in since
            count += is_border(start)
            start = start.next
            self._epochs[start] = count
        return count

    @property
    def has_borders(self) -> bool:
        """Return whether the graph has borders."""
        if self._borders is None:
            self._borders = self._count_borders()
        return self._borders > 0

    def reshaped(self) -> set[fx.Node]:
        """Return the nodes whose value, or a view of it, is given another shape in place.

        Dynamo's metadata shows the last shape. In place of a view, its base would be reshaped.
        """
        calls = self._reshaping if self.has_borders else ()
        todo = [written for call in calls for written in effects(call).writes]
        found: set[fx.Node] = set()
        for call in calls:  # `set_` gives a tensor the memory of another one
            for source in {*call.all_input_nodes} - {*effects(call).writes}:
                found |= sharers(source)
        while todo:
            node = todo.pop()
            if node not in found:
                found.add(node)
                todo += shared(node)
        return found

    def _count_borders(self) -> int:
        """Count the borders; if there are any, compute the epoch of each node, and which are
        written.
        """
        targets: dict[int, bool] = {}
        borders: list[fx.Node] = []
        for node in self.graph.nodes:
            is_harmless = targets.get(id(node.target))
            if is_harmless is None:
                is_harmless = targets[id(node.target)] = only_computes(node.target)
            if not is_harmless and is_border(node):
                borders.append(node)
        self._reshaping = [*filter(_reshapes, borders)]
        if borders:
            count, parting = 0, set(borders)
            for node in self.graph.nodes:
                self._epochs[node] = count
                count += node in parting
            changing = written(self.graph)
            self._written = {node: node in changing for node in self.graph.nodes}
        return len(borders)

    def border(self, first: fx.Node, last: fx.Node) -> fx.Node:
        """Return the first border between two nodes of different epochs, maybe the first node."""
        node = first
        while not is_border(node):
            node = node.next
        return node

    def users(self, node: fx.Node) -> list[fx.Node]:
        """Return the users of a node's value, without replaced nodes and assertions of its type."""
        return [
            user
            for user in node.users
            if user not in self.dead and user.target is not ASSERTS_METADATA
        ]

    def is_used(self, node: fx.Node) -> bool:
        """Return whether the node has `users`."""
        for user in node.users:
            if user not in self.dead and user.target is not ASSERTS_METADATA:
                return True
        return False

    def make(self, argument: Argument, children: list[Term]) -> Term:
        """Return the term of a node, or of another argument, with these children."""
        if isinstance(argument, fx.Node):
            return self._make(argument, children)
        if isinstance(argument, tuple):
            return self.terms.make(CONS if argument else NIL, children)
        return self._literal(argument)

    def _make(self, node: fx.Node, children: list[Term]) -> Term:
        call = self.call(node)
        if call.operator is LITERAL:
            return self._literal(call.attributes["value"])
        attributes = self._key(node, call)
        derived = Derived(self, node)
        term = self.terms.make(call.operator, children, attributes, derived)
        known = term.derived
        if isinstance(known, Derived) and known is not derived:
            if known.agrees(node):
                known.refresh(node)
            else:  # constants are literals whatever their dtype, but their users may show it
                attributes["@dtype"] = derived.get("dtype")
                term = self.terms.make(call.operator, children, attributes, derived)
        return term

    def _key(self, node: fx.Node, call: CanonicalCall) -> dict[str, Value]:
        """Return what identifies a term: the call's attributes and form, and its epoch or node."""
        if node.op in {"placeholder", "get_attr"}:
            return call.attributes
        attributes = dict(call.attributes)
        if call.form:
            attributes["@form"] = call.form
        if not is_pure(node) or self._may_change(node):
            attributes["@node"] = node.name
        elif epoch := self.epoch(node):
            attributes["@epoch"] = epoch
        return attributes

    def _may_change(self, node: fx.Node) -> bool:
        """Return whether something writes the value, so that equal ones may differ; never for
        views.
        """
        if not self.has_borders or is_sure_view(node):
            return False
        found = self._written.get(node)
        return is_written(node) if found is None else found  # a node put in since

    def _literal(self, value: Value) -> Term:
        return self.terms.make(LITERAL, (), {"value": value}, literal_properties(value))


def _reshapes(node: fx.Node) -> bool:
    """Return whether the call gives its argument another shape, other strides or other memory."""
    if node.op not in ("call_function", "call_method"):
        return False
    candidates = resolve(node.op, node.target).candidates
    return any(
        c.packet_name in RESHAPING or ("inplace_view" in c.tags and c.packet_name != "aten.detach_")
        for c in candidates
    )


def _unused(candidates: list[fx.Node]) -> set[fx.Node]:
    """Return the pure calls without users, and those that only such calls use."""
    unused: set[fx.Node] = set()
    todo = candidates
    while todo:
        node = todo.pop()
        if node.op.startswith("call_") and unused.issuperset(node.users) and is_pure(node):
            unused.add(node)
            todo += node.all_input_nodes
    return unused
