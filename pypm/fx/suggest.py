"""From a graph to a pattern: a region of a graph as a pattern and a rule to start from."""

from __future__ import annotations

import hashlib
import inspect
import linecache
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import fx

from pypm.core.depth import with_room
from pypm.core.operators import LITERAL
from pypm.core.rules import Rule
from pypm.diagnostics import Diagnostic, InternalError, PatternError
from pypm.fx.binding import is_number
from pypm.fx.dialect import Match
from pypm.fx.drafting import RESERVED, Selection, draft
from pypm.fx.given import Nodes, check_callable, check_module, nodes_of
from pypm.fx.legality import Refusal
from pypm.fx.operators import effects, is_pure, is_view
from pypm.fx.order import check_order
from pypm.fx.origins import source_of
from pypm.fx.program import Program
from pypm.fx.search import Search
from pypm.fx.symbols import Symbolic
from pypm.fx.tracing import alone
from pypm.fx.view import ASSERTS_METADATA, View
from pypm.lang.forms import PatternFunction

__all__ = ["Suggestion", "suggest", "suggest_function"]

OUTPUTS: Final = 8
"""The most outputs: a rule matches any of them alone, so each one doubles its patterns."""


@dataclass(frozen=True)
class Suggestion:
    """A pattern that matches the region it was made from, and a rule to fill in.

    `str` gives the source: a module of its own, to be copied and changed.
    """

    source: str
    pattern: PatternFunction = field(repr=False)
    rule: Rule = field(repr=False)
    """It declines, or calls the operator that was asked for."""

    def __str__(self) -> str:
        return self.source


@with_room
def suggest(
    gm: fx.GraphModule,
    nodes: Nodes,
    *,
    inputs: Nodes | None = None,
    keep: Nodes = (),
    name: str | None = None,
    kernel: str | None = None,
) -> Suggestion:
    """A pattern of a region of a graph, and a rule for it.

    `nodes` are the region, as nodes or their names; or with `inputs`, its outputs: the region is
    then what lies between. Values used outside are outputs, except views that the region can leave
    where they are, and what is in `keep`. Placeholders and constants become variables. Sizes that
    views are given are left open; literals, dims and dtypes are kept. The rule declines, or calls
    the custom operator `kernel` ("mylib::fused") on the inputs.

    The pattern has been matched against the graph: it finds this region. Raises PatternError
    where the region is empty or not in the graph, has effects or randomness, depends on itself
    through other nodes, or gives away a value that is not among its outputs.
    """
    check_module(gm, "pypm.fx.suggest")
    check_order(gm.graph)
    view = View(gm.graph)
    selection = _selected(view, nodes, inputs, keep)
    called = None if kernel is None else _kernel_name(kernel)
    made = _elaborated(draft(view, selection, _pattern_name(name, selection), called))
    _check(view.graph, selection, made)
    return made


def suggest_function(
    function: Callable[..., Any],
    example_inputs: Sequence[Any] | torch.Tensor,
    *,
    name: str | None = None,
    kernel: str | None = None,
) -> Suggestion:
    """A pattern of all that a function or module computes, and a rule for it, as from `suggest`.

    It is exported with the inputs as they are; tensors that it makes of numbers are constants.
    A tensor by itself is the one input. Raises PatternError as `suggest` does.
    """
    check_callable(function, "pypm.fx.suggest_function")
    module = function if isinstance(function, torch.nn.Module) else _as_module(function)
    inputs = [example_inputs] if isinstance(example_inputs, torch.Tensor) else example_inputs
    distinct = tuple(e.clone() if isinstance(e, torch.Tensor) else e for e in inputs)
    with torch.no_grad(), alone():
        program = torch.export.export(module, distinct, strict=False)
    gm = program.module(check_guards=False)
    calls = [n for n in gm.graph.nodes if n.op.startswith("call_") and not _is_lifted(n)]
    given = name or _camel(getattr(function, "__name__", type(function).__name__))
    return suggest(gm, calls, name=given, kernel=kernel)


def _as_module(function: Callable[..., Any]) -> torch.nn.Module:
    """A module that runs a function, its parameters named as the function's where it tells."""

    def forward(*inputs: Any) -> Any:
        return function(*inputs)

    module = torch.nn.Module()
    module.forward = forward
    with suppress(ValueError):
        inspect.signature(function)
        module.forward = function
    return module


def _is_lifted(node: fx.Node) -> bool:
    """Whether a node is of those that export makes of `torch.tensor([1, 2])`."""
    if node.target is torch.ops.aten.detach_.default:
        (node,) = node.all_input_nodes
    return node.target is torch.ops.aten.lift_fresh_copy.default


# --- the region ---------------------------------------------------------------------------------


def _selected(
    view: View,
    nodes: Nodes,
    inputs: Nodes | None,
    keep: Nodes,
) -> Selection:
    """The region that is meant, checked. Raises PatternError."""
    given = nodes_of(view.graph, nodes)
    kept = frozenset(nodes_of(view.graph, keep))
    between = None if inputs is None else _between(view, given, set(nodes_of(view.graph, inputs)))
    found = sorted(node for node in between or given if _is_computed(view, node))
    if not found:
        raise PatternError(_empty(given))
    region = tuple(found)
    for node in region:
        if not is_pure(node):
            raise PatternError(_impure(node))
    if stray := kept.difference(region):
        raise PatternError(_not_inside(min(stray)))
    outputs = _outputs(view, region, kept)
    if between is not None:
        _check_outputs(view, region, outputs, frozenset(given))
    if len(outputs) > OUTPUTS:
        raise PatternError(_many_outputs(outputs))
    _check_convex(region, outputs)
    variables = _inputs(view, region)
    _check_connected(frozenset(region), frozenset(variables), outputs)
    return Selection(region, outputs, variables, kept)


def _is_computed(view: View, node: fx.Node) -> bool:
    """Whether a node is one that a pattern describes: no input, number, constant or dead value."""
    if not node.op.startswith("call_") or node in view.dead or node.target is ASSERTS_METADATA:
        return False
    return view.call(node).operator != LITERAL


def _between(view: View, outputs: list[fx.Node], inputs: set[fx.Node]) -> list[fx.Node]:
    """The outputs and what they are computed from, back to the inputs."""
    todo = list(outputs)
    seen = set(todo)
    while todo:
        for source in todo.pop().all_input_nodes:
            if source not in seen and source not in inputs and _is_computed(view, source):
                seen.add(source)
                todo.append(source)
    return list(seen)


def _outputs(
    view: View, region: tuple[fx.Node, ...], kept: frozenset[fx.Node]
) -> tuple[fx.Node, ...]:
    """The nodes used outside, but for those that can stay alive there."""
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
    """The variables: in the order of the graph if all are its inputs, else as they are met."""
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
                    notes=_from(node),
                )
            )


def _check_convex(region: tuple[fx.Node, ...], outputs: tuple[fx.Node, ...]) -> None:
    """Raise PatternError where an input is computed from an output."""
    inside = frozenset(region)
    origin: dict[fx.Node, fx.Node] = {}
    """For nodes outside that are computed from the region, the output they come from."""
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
    parts: list[tuple[set[fx.Node], list[fx.Node]]] = []
    for output in outputs:
        cone, ends, todo = {output}, [output], [output]
        while todo:
            sources = set(todo.pop().all_input_nodes) - cone
            cone |= sources & (inside | variables)
            todo += sources & inside
        for part in [part for part in parts if part[0] & cone]:
            parts.remove(part)
            cone |= part[0]
            ends += part[1]
        parts.append((cone, ends))
    if len(parts) > 1:
        raise PatternError(_apart(parts[0][1][0], parts[1][1][0]))


def _apart(one: fx.Node, other: fx.Node) -> Diagnostic:
    return Diagnostic(
        f"the outputs `{one}` and `{other}` have nothing in common",
        help="ask for a pattern of each part",
        notes=("one pattern of both would match any two such parts",),
    )


def _not_convex(output: fx.Node, outside: fx.Node, node: fx.Node) -> Diagnostic:
    help = f"add `{outside}` and what leads to it, or leave out `{output}` or `{node}`"
    if is_number(outside):
        help = f"sizes are no part of a pattern: leave out `{output}` or `{node}`"
    return Diagnostic(
        f"the region depends on itself through `{outside}`",
        help=help,
        notes=(f"`{outside}` is computed from `{output}`, and `{node}` uses it", *_from(outside)),
    )


def _empty(given: list[fx.Node]) -> Diagnostic:
    names = ", ".join(f"`{node}`" for node in given[:5])
    why = "inputs, constants and values that nothing uses are no part of a pattern"
    return Diagnostic(
        f"nothing is computed by {names}" if given else "the region has no nodes",
        help="give the nodes of the region, or its outputs together with `inputs=`",
        notes=(why,) if given else (),
    )


def _not_inside(node: fx.Node) -> Diagnostic:
    return Diagnostic(
        f"`{node}` is to stay alive, but is not in the region",
        help="add it to the nodes, or leave it out of `keep=`",
    )


def _impure(node: fx.Node) -> Diagnostic:
    found = effects(node)
    if found.unknown is not None:
        message = f"`{node}` calls `{found.unknown}`, of which nothing is known"
        help = "say what it does by `pypm.fx.declare`, or leave it out"
    elif found.draws:
        message = f"`{node}` is random: a rewrite can neither drop nor redo it"
        help = "leave it out, or capture the model in evaluation mode"
    else:
        message = f"`{node}` writes memory or has another effect"
        help = "leave it out, or capture the model without mutation, as `torch.compile` does"
    return Diagnostic(message, help=help, notes=_from(node))


def _many_outputs(outputs: tuple[fx.Node, ...]) -> Diagnostic:
    names = ", ".join(f"`{node}`" for node in outputs)
    return Diagnostic(
        f"the region has {len(outputs)} outputs, more than {OUTPUTS}",
        help="make the region smaller, or name those that may stay alive: `keep=[...]`",
        notes=(f"they are {names}",),
    )


def _from(node: fx.Node) -> tuple[str, ...]:
    source = source_of(node)
    return (f"from {source}",) if source else ()


# --- what is made of it -------------------------------------------------------------------------


def _pattern_name(name: str | None, selection: Selection) -> str:
    found = name or _module_name(selection)
    if found.isidentifier() and found not in RESERVED:
        return found
    if name is None:
        return "Region"
    help = "give it a name like `GatedMlp`"
    raise PatternError(Diagnostic(f"`{name}` is no name for a pattern", help=help))


def _kernel_name(kernel: str) -> str:
    """A custom operator as it is called: `torch.ops.mylib.fused`."""
    dotted = kernel.replace("::", ".")
    if "." not in dotted or not all(part.isidentifier() for part in dotted.split(".")):
        help = "name it with its library, as in `mylib::fused`"
        raise PatternError(Diagnostic(f"`{kernel}` is no name for an operator", help=help))
    return f"torch.ops.{dotted}"


def _module_name(selection: Selection) -> str:
    """The class of the innermost module of the model that all nodes belong to."""
    stacks = [list((node.meta.get("nn_module_stack") or {}).items()) for node in selection.nodes]
    common = ""
    for entries in zip(*stacks, strict=False):
        if any(entry != entries[0] for entry in entries):
            break
        kind = entries[0][1][1]
        common = kind if isinstance(kind, str) else kind.__qualname__
    return _camel(common.rpartition(".")[2])


def _camel(name: str) -> str:
    """`gated_mlp` as the name of a pattern: `GatedMlp`."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[\W_]+", name))


def _elaborated(source: str) -> Suggestion:
    """Run a module as if it were a file, which is where patterns are read from."""
    file = f"<suggestion {hashlib.sha256(source.encode()).hexdigest()[:12]}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"__name__": file}
    exec(compile(source, file, "exec"), scope)
    (rule,) = [value for value in scope.values() if isinstance(value, Rule)]
    (pattern,) = [value for value in scope.values() if isinstance(value, PatternFunction)]
    return Suggestion(source, pattern, rule)


def _check(graph: fx.Graph, selection: Selection, made: Suggestion) -> None:
    """Raise PatternError where the rule cannot rewrite the region that it came from."""
    program = Program([replace(made.rule, partial=())])
    view = View(graph, program.reader)
    (target,) = program.targets
    refusal: Refusal | None = None
    for candidate in Search(view).candidates(target, selection.outputs[0]):
        if isinstance(candidate, Refusal):
            refusal = refusal or candidate
        elif _is_region(view, selection, candidate):
            return
    if refusal is None:
        raise InternalError(f"the suggestion does not match where it comes from:\n{made}")
    help = "make the region smaller"
    if refusal.kind == "effect":
        help = "leave out one of them, or capture the model without mutation"
    notes = () if refusal.node is None else _from(refusal.node)
    raise PatternError(Diagnostic(refusal.reason, help=help, notes=notes))


def _is_region(view: View, selection: Selection, match: Match) -> bool:
    computed = [node for node in match.region.nodes if _is_computed(view, node)]
    return computed == [*selection.nodes] and match.roots == selection.outputs
