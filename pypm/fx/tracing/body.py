"""Tracing a rule's body in the dialect of the graph it rewrites, on fake tensors or proxies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import getitem
from types import CodeType
from typing import TypeAlias

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.node import Argument
from torch.fx.proxy import TraceError

from pypm.core.operators import Operator
from pypm.core.patterns import Var
from pypm.core.records import Record, mapped
from pypm.core.rules import DECLINES, Build, Decline, Rule
from pypm.core.terms import Value
from pypm.fx.legality.region import Refusal
from pypm.fx.legality.replacement import judge_trace, writes_own_memory
from pypm.fx.matching.match import Match, Reading
from pypm.fx.operators.arguments import CHILD
from pypm.fx.operators.body_trace import (
    BODY_TRACE,
    BodyTrace,
    DeclineDropped,
    NothingReturned,
)
from pypm.fx.operators.dialects import Dialect
from pypm.fx.operators.effects import is_pure, mutates, reads_old_memory
from pypm.fx.operators.targets import torch_operator
from pypm.fx.tracing.kernel_contract import UnsupportedType, refused_type
from pypm.fx.tracing.proxies import items_of, trace_on_proxies
from pypm.fx.tracing.templates import build, objections_to_calls
from pypm.fx.values.fake_tensors import distinct, fake_mode, faked, guardless, symbolic_size
from pypm.fx.values.metadata import is_object, metadata
from pypm.fx.values.symbolic import Symbolic, opaque
from pypm.torch_internals import (
    DisableAutocast,
    FakeTensor,
    FakeTensorMode,
    FunctionalTensorMode,
    OpOverload,
    PythonReferenceAnalysis,
    dispatch_functionalize,
    enable_python_dispatcher,
    pytree,
    sympy_interp,
    unset_fake_temporarily,
)

__all__ = ["Outcome", "Replacement", "takes_match", "trace"]


@dataclass(frozen=True, slots=True)
class Replacement:
    """A traced body: a graph, which is copied to every match with the same trace key."""

    graph: fx.Graph
    owner: torch.nn.Module
    """Module with the constants of the graph, and the functions passed to its operators."""
    holes: tuple[fx.Node, ...]
    """The placeholders, one for each of the region's operands."""
    outputs: tuple[Argument, ...]
    """The values of the roots, in order: nodes, numbers or lists of nodes."""


Outcome: TypeAlias = Replacement | Refusal
Body: TypeAlias = Callable[..., object]
"""A replacement as a function from the values of the operands to those of the roots."""


class _Declined(Exception):  # carries a result out of the tracer
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def trace(
    rule: Rule, match: Match, dialect: Dialect, *, trained: bool = False, rehearsed: bool = False
) -> Outcome:
    """Trace a rule's body at a match, and return the `Replacement`.

    Arguments:
        rule: the rule; its replacement is a function or a template.
        match: the match, whose bindings are the body's arguments.
        dialect: the dialect of the graph; the trace consists of its operators.
        trained: what `pypm.fx.trained` tells the body.
        rehearsed: call the body without a tracer first; if it declines, that takes a third as long.

    Return a `Refusal` if the body declines, depends on an unknown size, calls an operator that does
    not take the dtypes, holds a tensor that the dialect has no place for, does more than compute,
    or lacks an operator that a kernel expects. Other exceptions of the body pass through.
    """
    root, operands = match.root, match.region.operands
    for objection in objections_to_calls(rule):
        return Refusal("effect", f"{objection.message}: {objection.label}", (root,))
    under_way = BodyTrace(trained)
    token = BODY_TRACE.set(under_way)
    try:
        body = _body(rule, match, operands)
        if rehearsed:
            _rehearse(body, operands)
        owner, graph = _traced(body, operands, dialect)
    except _Declined as declined:
        return Refusal("declined", declined.reason or "the body declines", (root,))
    except (TraceError, GuardOnDataDependentSymNode, RuntimeError, UnsupportedType) as error:
        unknown, untaken = symbolic_size(error), refused_type(error)
        if unknown is not None:
            return Refusal("symbolic", f"the body depends on a symbolic size: {unknown}", (root,))
        if untaken is not None:
            return Refusal("declined", untaken, (root,))
        raise
    finally:
        BODY_TRACE.reset(token)
    found = {torch_operator(n.target).name for n in graph.nodes if n.op == "call_function"}
    for want in under_way.expected:
        if not want.targets & found:
            return Refusal("kernel", f"`{want.name}` decomposes for these inputs", (root,))
    if not dialect.constants and _holds_tensors(owner, graph):
        return Refusal("constant", "the replacement holds a tensor that the body made", (root,))
    refusal = judge_trace(graph, match.region)
    if refusal is not None:
        return refusal
    (result,) = graph.output_node().args
    outputs = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    replacement = Replacement(graph, owner, tuple(graph.find_nodes(op="placeholder")), outputs)
    return _changed_input(rule, match, replacement) or replacement


def _rehearse(body: Body, operands: tuple[fx.Node, ...]) -> None:
    """Call a body on fake values for its refusal to be replaced; other errors are the trace's."""
    mode = fake_mode(operands)
    if mode is None or any(metadata(node) is None for node in operands):
        return
    values = distinct([faked(metadata(node), mode) for node in operands], mode)
    try:
        with guardless(mode), DisableAutocast(), mode:
            body(*values)
    except _Declined:
        raise
    except Exception:
        return


def _traced(
    body: Body, operands: tuple[fx.Node, ...], dialect: Dialect
) -> tuple[torch.nn.Module, fx.Graph]:
    """Trace a body in the dialect; where that tells too little of memory that it allocates, by
    ATen's operators: of writes, and of tensors made by calls without a traced argument.
    """
    checked = all(metadata(node) is not None for node in operands)
    if not checked or dialect.style != "aten":
        owner, graph = trace_on_proxies(body, operands)
        _inline_scalars(owner, graph, dialect)
        is_held = not dialect.constants and _holds_tensors(owner, graph)
        if not checked or not (is_held or any(map(mutates, graph.nodes))):
            return owner, graph
    owner, graph = _trace_aten(body, operands, dialect)
    _inline_scalars(owner, graph, dialect)
    return owner, graph


def _holds_tensors(owner: torch.nn.Module, graph: fx.Graph) -> bool:
    held = [getattr(owner, str(node.target)) for node in graph.find_nodes(op="get_attr")]
    return not all(isinstance(value, torch.nn.Module) for value in held)


def _changed_input(rule: Rule, match: Match, replacement: Replacement) -> Refusal | None:
    """Return a refusal if a root is an input of the region and the replacement changes it."""
    holes = dict(zip(match.region.operands, replacement.holes, strict=True))
    for root, node, output in zip(rule.roots, match.roots, replacement.outputs, strict=False):
        bound = match.bindings.get(root.name) if isinstance(root, Var) else None
        if node is None and isinstance(bound, fx.Node) and output is not holes[bound]:
            reason = f"the region gives its input `{bound}` as it is, and the replacement does not"
            return Refusal("mismatch", reason, (match.root, bound))
    return None


def _body(rule: Rule, match: Match, operands: tuple[fx.Node, ...]) -> Body:

    def body(*values: object) -> tuple[object, ...]:
        traced = dict(zip(operands, values, strict=True))
        mode, sizes = fake_mode(operands), _symbols(traced)

        def inside_of(value: Value) -> Value:
            if isinstance(value, Operator):
                return _as_matched(value, match)
            return _substitute(value, traced, sizes, mode)

        inside = replace(
            match,
            bindings={name: inside_of(value) for name, value in match.bindings.items()},
            inputs=tuple(map(inside_of, match.inputs)),
            side_inputs=tuple(map(inside_of, match.side_inputs)),
            reading=_read_inside(match.reading, inside_of),
        )
        declines: list[tuple[CodeType, int]] = []
        token = DECLINES.set(declines)
        try:
            result = _invoke(rule, inside)
        finally:
            DECLINES.reset(token)
        if isinstance(result, Decline):
            raise _Declined(result.reason)
        if declines:
            raise DeclineDropped(*declines[0])
        if result is None:
            raise NothingReturned
        if isinstance(result, fx.Proxy):
            return items_of(result, len(match.roots))
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    return body


def _as_matched(operator: Operator, match: Match) -> Operator:
    """Return an operator that declines to be called if it is no operator of torch, or without the
    attributes that it was matched with, where these are not its defaults.
    """
    tensors = match.altered(operator)
    if tensors is None and operator.run is not None:
        return operator

    def run(*arguments: object, **keywords: object) -> object:
        if operator.run is None:
            raise _Declined(f"a body cannot call `{operator}`, which is no operator of torch")
        if tensors is not None and len(arguments) <= tensors and not keywords:
            raise _Declined(f"`{operator}` is called without the attributes that it has here")
        return operator(*arguments, **keywords)

    return replace(operator, run=run)


def _read_inside(reading: Reading | None, inside_of: Callable[[Value], Value]) -> Reading | None:
    if reading is None:
        return None
    return replace(reading, nodes=tuple(map(inside_of, reading.nodes)))


def _substitute(
    value: Value,
    traced: Mapping[fx.Node, Value],
    sizes: dict[sympy.Basic, Value],
    mode: FakeTensorMode | None,
) -> Value:
    if isinstance(value, fx.Node):
        return traced[value]
    if value is CHILD:
        raise _Declined("the index holds a tensor, which is no part of a binding")
    if isinstance(value, (tuple, list)):
        parts = [_substitute(part, traced, sizes, mode) for part in value]
        match value:
            case ("slice", _, _, _):
                return slice(*parts[1:])
            case ("list", *_):
                return parts[1:]
        return type(value)(parts)
    if isinstance(value, Record):
        return mapped(lambda part: _substitute(part, traced, sizes, mode), value)
    if isinstance(value, Symbolic):
        expression = value.expression
        if expression in sizes:
            return sizes[expression]
        if sizes.keys() >= expression.free_symbols:
            return sympy_interp(PythonReferenceAnalysis, sizes, expression)
        if mode is None or mode.shape_env is None:
            raise TraceError("a symbolic size cannot be traced here")
        return mode.shape_env.create_symintnode(expression, hint=None)
    return value


def _symbols(traced: Mapping[fx.Node, Value]) -> dict[sympy.Basic, Value]:
    """Return the sizes and objects in operands, by their expressions in attributes."""
    found: dict[sympy.Basic, Value] = {}
    for node, value in traced.items():
        if is_object(node):
            found[opaque(node).expression] = value
        parts = value.shape if isinstance(value, torch.Tensor) else (value,)
        found |= {n.node.expr: n for n in parts if isinstance(n, torch.SymInt)} | found
    return found


def takes_match(rule: Rule) -> bool:
    """Return whether the rule's body has a parameter `match`."""
    body = rule.replacement
    return not isinstance(body, (Var, Build)) and "match" in _formal(body)


@lru_cache(maxsize=4096)
def _formal(body: Callable[..., object]) -> tuple[str, ...]:
    """Return the names of a body's parameters; empty for builtins without a signature."""
    try:
        return tuple(inspect.signature(body).parameters)
    except ValueError:
        return ()


def _invoke(rule: Rule, match: Match) -> object:
    body = rule.replacement
    if isinstance(body, (Var, Build)):
        return build(body, match.bindings)
    values = {name: match.bindings[name] for name in rule.parameters}
    if takes_match(rule):
        values["match"] = match
    formal = _formal(body)
    if formal and set(formal) <= set(values):
        return body(**{name: values[name] for name in formal})
    match_keyword = {"match": values.pop("match")} if "match" in values else {}
    return body(*values.values(), **match_keyword)


def _trace_aten(
    body: Body, operands: tuple[fx.Node, ...], dialect: Dialect
) -> tuple[torch.nn.Module, fx.Graph]:
    mode = fake_mode(operands) or FakeTensorMode()
    values = distinct([faked(metadata(node), mode) for node in operands], mode)
    table = _decompositions() if dialect.decompose else None
    early = not dialect.decompose
    traced = make_fx(body, table, tracing_mode="real", pre_dispatch=early)
    allowed = mode.allow_non_fake_inputs
    mode.allow_non_fake_inputs = True  # constants that the body closes over
    try:
        with guardless(mode), DisableAutocast(), ExitStack() as stack:
            if dialect.decompose:
                stack.enter_context(enable_python_dispatcher())
            module: fx.GraphModule = traced(*values)
            if writes_own_memory(module.graph):
                written = dispatch_functionalize(body, FunctionalTensorMode(pre_dispatch=early))
                module = make_fx(written, table, "real", pre_dispatch=early)(*values)
                _remove_dead_code(module.graph)
    finally:
        mode.allow_non_fake_inputs = allowed
    _join(module.graph, values)
    if dialect.reshape:
        for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
            node.target = torch.ops.aten.reshape.default
    return module, module.graph


def _remove_dead_code(graph: fx.Graph) -> None:
    """Remove calls that only compute, or only allocate, and whose values have no users."""
    for node in reversed(graph.nodes):
        is_removable = is_pure(node) or reads_old_memory(node)
        if node.op.startswith("call_") and not node.users and is_removable:
            graph.erase_node(node)


def _join(graph: fx.Graph, values: Sequence[fx.node.Argument]) -> None:
    """Give each value one placeholder: a trace gives one to each item of a list."""
    holes = iter(graph.find_nodes(op="placeholder"))
    for value in values:
        if not isinstance(value, (tuple, list)):
            next(holes)
            continue
        items = [next(holes) for _ in pytree.tree_leaves(value)]
        if len(items) != len(value):
            raise _Declined("an operand is a list of lists")
        with graph.inserting_before(items[0]):
            whole = graph.placeholder(f"{items[0].name}_whole")
        for index, item in enumerate(items):
            with graph.inserting_before(item):
                item.replace_all_uses_with(graph.call_function(getitem, (whole, index)))
            graph.erase_node(item)


def _decompositions() -> Mapping[OpOverload, Callable[..., object]]:
    """Return Inductor's decompositions, without those of overloads that write: they become values
    first, and some of these decompositions take no `out`.
    """
    from pypm.torch_internals import select_decomp_table

    table = select_decomp_table()
    return {target: found for target, found in table.items() if not _writes(target)}


@lru_cache(maxsize=4096)
def _writes(target: object) -> bool:
    return isinstance(target, OpOverload) and bool(target._schema.is_mutable)


def _inline_scalars(owner: torch.nn.Module, graph: fx.Graph, dialect: Dialect) -> None:
    """Replace 0-d constants by calls of `full`, as in graphs of `torch.compile`.

    `torch.tensor` in a body makes these constants, and the copies after them, which are removed. A
    constant that requires gradients stays.
    """
    aten = torch.ops.aten
    for lifted in graph.find_nodes(op="call_function", target=aten.lift_fresh_copy.default):
        for user in [*lifted.users]:
            if user.target in (aten.detach_.default, aten.detach.default):
                _bypass(user, lifted)
    for node in graph.find_nodes(op="get_attr"):
        value = getattr(owner, str(node.target))
        value = value.constant if isinstance(value, FakeTensor) else value
        if not isinstance(value, torch.Tensor) or value.dim() or value.requires_grad:
            continue
        options: dict[str, Argument] = {"dtype": value.dtype, "device": value.device}
        with unset_fake_temporarily():
            number = value.item()
        with graph.inserting_before(node):
            target = aten.full.default if dialect.style == "aten" else torch.full
            full = graph.call_function(target, ([], number), options)
        for user in list(node.users):
            if user.target is aten.lift_fresh_copy.default:
                _bypass(user, full)
        _bypass(node, full)


def _bypass(node: fx.Node, other: fx.Node) -> None:
    node.replace_all_uses_with(other)
    node.graph.erase_node(node)
