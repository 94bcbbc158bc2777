"""The region from which a suggestion is made, and the checks of it."""

from __future__ import annotations

from typing import Final

import networkx as nx
import torch
from torch import fx

from pypm.core.operators import LITERAL
from pypm.diagnostics import Diagnostic, PatternError
from pypm.fx.operators.effects import effects, is_pure, is_view
from pypm.fx.reporting.node_records import source_of
from pypm.fx.subject.view import ASSERTS_METADATA, View
from pypm.fx.suggesting.source_text import Selection
from pypm.fx.values.metadata import is_number
from pypm.fx.values.symbolic import Symbolic
from pypm.fx.values.user_input import Nodes, nodes_of

__all__ = ["is_computed", "is_lifted", "selected", "source_notes"]

OUTPUTS: Final = 8
"""The largest number of outputs: a rule matches any of them alone, so each one doubles its
patterns.
"""


def is_lifted(node: fx.Node) -> bool:
    """Return whether a node is one of those that export creates for `torch.tensor([1, 2])`."""
    if node.target is torch.ops.aten.detach_.default:
        (node,) = node.all_input_nodes
    return node.target is torch.ops.aten.lift_fresh_copy.default


# --- the region ---------------------------------------------------------------------------------


def selected(
    view: View,
    nodes: Nodes,
    inputs: Nodes | None,
    keep: Nodes,
) -> Selection:
    """Return the region that the arguments select. Raises PatternError if it has no pattern."""
    given = nodes_of(view.graph, nodes)
    kept = frozenset(nodes_of(view.graph, keep))
    between = None if inputs is None else _between(view, given, set(nodes_of(view.graph, inputs)))
    found = sorted(node for node in between or given if is_computed(view, node))
    if not found:
        raise PatternError(_empty(given))
    region = tuple(found)
    for node in region:
        if not is_pure(node):
            raise PatternError(_impure(node))
    if stray := kept.difference(region):
        message = f"`{min(stray)}` is to stay alive, but is not in the region"
        help = "add it to the nodes, or leave it out of `keep=`"
        raise PatternError(Diagnostic(message, help=help))
    outputs = _outputs(view, region, kept)
    if between is not None:
        _check_outputs(view, region, outputs, frozenset(given))
    if len(outputs) > OUTPUTS:
        message = f"the region has {len(outputs)} outputs, more than {OUTPUTS}"
        help = "make the region smaller, or name those that may stay alive: `keep=[...]`"
        names = ", ".join(f"`{node}`" for node in outputs)
        raise PatternError(Diagnostic(message, help=help, notes=(f"they are {names}",)))
    _check_convex(region, outputs)
    variables = _inputs(view, region)
    _check_connected(frozenset(region), frozenset(variables), outputs)
    return Selection(region, outputs, variables, kept)


def is_computed(view: View, node: fx.Node) -> bool:
    """Return whether a pattern describes the node: not an input, number, constant or dead value."""
    if not node.op.startswith("call_") or node in view.dead or node.target is ASSERTS_METADATA:
        return False
    return view.call(node).operator != LITERAL


def _between(view: View, outputs: list[fx.Node], inputs: set[fx.Node]) -> list[fx.Node]:
    """Return the outputs and all nodes between the inputs and them."""
    todo = list(outputs)
    seen = set(todo)
    while todo:
        for source in todo.pop().all_input_nodes:
            if source not in seen and source not in inputs and is_computed(view, source):
                seen.add(source)
                todo.append(source)
    return list(seen)


def _outputs(
    view: View, region: tuple[fx.Node, ...], kept: frozenset[fx.Node]
) -> tuple[fx.Node, ...]:
    """Return the nodes with users outside, except those that may stay alive for them."""
    inside = frozenset(region)
    free = set(kept)
    found = []
    for node in region:
        users = view.users(node)
        sources = inside.intersection(node.all_input_nodes)
        if is_view(node) and sources <= free and not inside.isdisjoint(users):
            free.add(node)
        elif not inside.issuperset(users) and (node not in kept or inside.isdisjoint(users)):
            found.append(node)
    return tuple(found)


def _inputs(view: View, region: tuple[fx.Node, ...]) -> tuple[fx.Node, ...]:
    """Return the variables: in graph order if they are all of the graph's inputs, else as first
    read.
    """
    inside = frozenset(region)
    met = dict.fromkeys(a for node in region for a in view.call(node).nodes if a not in inside)
    found = [node for node in met if not _is_literal(view, node)]
    return tuple(sorted(found) if all(node.op == "placeholder" for node in found) else found)


def _is_literal(view: View, node: fx.Node) -> bool:
    call = view.call(node)
    return call.operator == LITERAL and not isinstance(call.attributes["value"], Symbolic)


# --- what is wrong with a region ----------------------------------------------------------------


def _check_outputs(
    view: View,
    region: tuple[fx.Node, ...],
    outputs: tuple[fx.Node, ...],
    given: frozenset[fx.Node],
) -> None:
    inside = frozenset(region)
    for node in outputs:
        if node not in given:
            user = next(user for user in view.users(node) if user not in inside)
            raise PatternError(
                Diagnostic(
                    f"`{node}` is also used by `{user}`, outside of the region",
                    help=f'make it an output too, or let it stay alive there: `keep=["{node}"]`',
                    notes=source_notes(node),
                )
            )


def _check_convex(region: tuple[fx.Node, ...], outputs: tuple[fx.Node, ...]) -> None:
    """Raise PatternError where an input is computed from an output."""
    inside = frozenset(region)
    origin: dict[fx.Node, fx.Node] = {}
    """Nodes outside that are computed from the region, mapped to the output that they come from."""
    node = region[0]
    while node is not region[-1]:
        node = node.next
        for source in node.all_input_nodes:
            if node in inside and source in origin:
                raise PatternError(_not_convex(origin[source], source, node))
            if node not in inside and (source in outputs or source in origin):
                origin[node] = origin.get(source, source)


def _check_connected(
    inside: frozenset[fx.Node], variables: frozenset[fx.Node], outputs: tuple[fx.Node, ...]
) -> None:
    """Raise PatternError where some outputs have no value in common with the others."""
    groups: nx.utils.UnionFind[fx.Node] = nx.utils.UnionFind()
    for node in inside:
        groups.union(node, *(inside | variables).intersection(node.all_input_nodes))
    one, *others = outputs
    for other in others:
        if groups[other] is not groups[one]:
            message = f"the outputs `{one}` and `{other}` have nothing in common"
            why = "one pattern of both would match any two such parts"
            help = "ask for a pattern of each part"
            raise PatternError(Diagnostic(message, help=help, notes=(why,)))


def _not_convex(output: fx.Node, outside: fx.Node, node: fx.Node) -> Diagnostic:
    help = f"add `{outside}` and what leads to it, or leave out `{output}` or `{node}`"
    if is_number(outside):
        help = f"sizes are no part of a pattern: leave out `{output}` or `{node}`"
    return Diagnostic(
        f"the region depends on itself through `{outside}`",
        help=help,
        notes=(
            f"`{outside}` is computed from `{output}`, and `{node}` uses it",
            *source_notes(outside),
        ),
    )


def _empty(given: list[fx.Node]) -> Diagnostic:
    names = ", ".join(f"`{node}`" for node in given[:5])
    why = "inputs, constants and values that nothing uses are no part of a pattern"
    return Diagnostic(
        f"nothing is computed by {names}" if given else "the region has no nodes",
        help="give the nodes of the region, or its outputs together with `inputs=`",
        notes=(why,) if given else (),
    )


def _impure(node: fx.Node) -> Diagnostic:
    found = effects(node)
    if found.unknown is not None:
        message = f"`{node}` calls `{found.unknown}`, whose effects are unknown"
        help = "say what it does by `pypm.fx.declare`, or leave it out"
    elif found.draws:
        message = f"`{node}` is random: a rewrite can neither drop nor redo it"
        help = "leave it out, or capture the model in evaluation mode"
    else:
        message = f"`{node}` writes memory or has another effect"
        help = "leave it out, or capture the model without mutation, as `torch.compile` does"
    return Diagnostic(message, help=help, notes=source_notes(node))


def source_notes(node: fx.Node) -> tuple[str, ...]:
    """Return a note that says where in the model a node comes from, if that is known."""
    source = source_of(node)
    return (f"from {source}",) if source else ()
