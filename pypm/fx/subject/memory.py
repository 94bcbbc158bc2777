"""Memory: nodes of a graph that may share it, and writes to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from operator import attrgetter, getitem
from typing import Final

import torch
from torch import fx

from pypm.fx.operators.canonical_calls import direct_call
from pypm.fx.operators.effects import effects, is_border, is_sure_view, only_computes
from pypm.fx.values.metadata import metadata, storage

__all__ = [
    "allocations",
    "is_written",
    "may_share",
    "shared",
    "sharers",
    "viewers",
    "written",
    "written_after",
]

_GIVEN: Final = ("placeholder", "get_attr")


def may_share(one: fx.Node, other: fx.Node) -> bool:
    """Return whether the values of two nodes may share memory."""
    return not set(allocations(one)).isdisjoint(allocations(other))


def sharers(*nodes: fx.Node) -> set[fx.Node]:
    """Return the nodes whose values may share memory with that of a node, the nodes included."""
    return viewers(*_twins({*allocations(*nodes)}))


def viewers(*nodes: fx.Node) -> set[fx.Node]:
    """Return the nodes, and their views of any depth, certain or possible."""
    found: set[fx.Node] = set()
    todo = list(nodes)
    while todo:
        source = todo.pop()
        if source not in found:
            found.add(source)
            todo += [user for user in source.users if source in shared(user)]
    return found


def shared(node: fx.Node) -> tuple[fx.Node, ...]:
    """Return the arguments with which the value of a node shares, or may share, memory."""
    plain = direct_call(node.target)
    if plain is not None and not plain.overload.shared:
        return ()
    found = effects(node).shares
    return () if node.target is getitem and _is_apart(found) else found


def may_be_view(node: fx.Node) -> bool:
    """Return whether the value is a view or a copy by strides, or may be."""
    return bool(shared(node)) and not is_sure_view(node) and not is_border(node)


def _is_apart(sources: Sequence[fx.Node]) -> bool:
    """Return whether values consist of separate tensors, of which each is taken at most once."""
    for source in sources:
        value = metadata(source)
        if not isinstance(value, (tuple, list)) or not value or source.op in _GIVEN:
            return False
        if shared(source) or effects(source).unknown is not None:
            return False
        taken = [_position(user, len(value)) for user in source.users]
        if None in taken or len({*taken}) < len(taken):
            return False
    return True


def _position(item: fx.Node, length: int) -> int | None:
    """Return which item of a value is taken; None if it is another use, or is not known."""
    index = item.args[1] if item.target is getitem else None
    return index % length if type(index) is int else None


def written(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes of a graph for which `is_written` is true, in linear time.

    Sharing is symmetric: a node is written if it shares memory with what a call may write.
    """
    found: list[fx.Node] = []
    held: set[int | str | None] = set()
    is_open = False
    for node in graph.nodes:
        if only_computes(node.target):
            continue
        call = effects(node)
        found += call.writes
        is_open |= call.unknown is not None and node.op != "call_module"
        if call.acts:
            held |= _held(node)
    attributes = graph.find_nodes(op="get_attr") if is_open or held else ()
    return sharers(*found, *[n for n in attributes if is_open or _place(n) in held])


def is_written(node: fx.Node) -> bool:
    """Return whether anything writes, or may write, to the memory of a node's value."""
    return any(True for _ in _writers(sharers(node)))


def written_after(nodes: Set[fx.Node], place: fx.Node) -> bool:
    """Return whether anything after a node writes, or may write, to the memory of some nodes."""
    return any(place < writer for writer in _writers(nodes))


def _writers(nodes: Set[fx.Node]) -> Iterator[fx.Node]:
    """Yield the nodes that write to some nodes, which include all that share their memory.

    An unknown call may keep its arguments, and another unknown call may write them. An unknown
    function may write what the module holds, and a module what it holds itself.
    """
    keeps = False
    for user in {user for node in nodes for user in node.users}:
        if user.op == "output" or only_computes(user.target):
            continue
        found = effects(user)
        keeps |= found.unknown is not None
        if not nodes.isdisjoint(found.writes):
            yield user
    places = {_place(node) for node in nodes if node.op == "get_attr"}
    if not keeps and not places:
        return
    for node in next(iter(nodes)).graph.nodes:
        if only_computes(node.target):
            continue
        found = effects(node)
        may_reach = keeps or node.op != "call_module"
        if (found.unknown is not None and may_reach) or (
            found.acts and not places.isdisjoint(_held(node))
        ):
            yield node


def _held(call: fx.Node) -> set[int | str | None]:
    """Return the storages of what a module that is called holds."""
    owner = call.graph.owning_module
    if owner is None or call.op != "call_module":
        return set()
    module = owner.get_submodule(str(call.target))
    return {storage(x) for x in (*module.parameters(), *module.buffers())}


def allocations(
    *nodes: fx.Node, copies: Callable[[fx.Node], bool] = lambda _: False
) -> Iterator[fx.Node]:
    """Yield the nodes that may have allocated the memory of the values of some nodes.

    Behind a node for which `copies` is true, which certainly is no view, none is looked for.
    """
    todo, seen = [*nodes], {*nodes}
    while todo:
        source = todo.pop()
        above = shared(source)
        if not above or not is_sure_view(source):
            yield source
            if copies(source):
                continue
        for each in above:
            if each not in seen:
                seen.add(each)
                todo.append(each)


def _twins(nodes: Set[fx.Node]) -> Set[fx.Node]:
    """Return the nodes, with all inputs and attributes of the module that may be one tensor with
    one of them, or views of one.
    """
    own = {node: _place(node) for node in nodes if node.op in _GIVEN}
    if not own:
        return nodes
    given = [each for op in _GIVEN for each in next(iter(own)).graph.find_nodes(op=op)]
    if None in own.values():
        return nodes | {*given}
    places = {None, *own.values()}
    return nodes | {each for each in given if _place(each) in places}


def _place(node: fx.Node) -> int | str | None:
    """Return the storage of an input or an attribute; None if it is not known."""
    owner = node.graph.owning_module
    is_held = node.op == "get_attr" and owner is not None
    value: object = attrgetter(str(node.target))(owner) if is_held else metadata(node)
    if isinstance(value, torch.Tensor):
        return storage(value)
    return None if value is None or isinstance(value, (tuple, list, dict)) else node.name
