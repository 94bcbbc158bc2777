"""Rules on an exported program: its graph is rewritten, its signature kept right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from pypm.core.rules import Exactness, Rules
from pypm.diagnostics import Diagnostic, PyPMError
from pypm.fx import PROGRAM, Choice, Dialect, Recording, Report, first
from pypm.fx.operators.effects import effects, is_pure, mutates
from pypm.fx.rewriting.driver import rewrite_module
from pypm.fx.subject.transaction import Transaction
from pypm.fx.values.user_input import check_program
from pypm.torch_internals import ignore_backend_decomps, pytree

__all__ = ["Folded", "fold", "rewrite"]


def rewrite(
    program: ExportedProgram,
    rules: Rules,
    *,
    budget: int | None = None,
    exactness: Exactness = "reassociated",
    dialect: Dialect | None = PROGRAM,
    choose: Choice = first,
    record: Recording | None = None,
) -> Report:
    """Rewrite an exported program in place, until no rule matches, and return the report.

    Arguments:
        program: the program; its graph signature is kept up to date. A submodule whose signature
            was to be preserved loses it if one of its inputs or results is replaced.
        rules: a rule, a rule set, or a list of those.
        budget, exactness, dialect, choose, record: the options of `pypm.fx.rewrite`.

    Raises PyPMError if `program` is not an exported program, and whatever `pypm.fx.rewrite` raises.
    The program is then as it was before the call.
    """
    check_program(program, "pypm.integrations.export.rewrite")
    nodes = {node.name: node for node in program.graph.nodes}
    # in the settings in which torch traced it: strides of convolutions depend on them
    with ignore_backend_decomps(), Transaction() as transaction:
        report = rewrite_module(
            program.graph_module,
            rules,
            transaction,
            budget=budget,
            exactness=exactness,
            dialect=dialect,
            choose=choose,
            record=record,
        )
        (results,) = program.graph.output_node().args
        assert isinstance(results, (tuple, list))
        pairs = [*zip(program.graph_signature.output_specs, results, strict=True)]
        renamed: dict[str, str] = {}
        for spec, result in pairs:
            if isinstance(result, fx.Node):
                renamed[spec.arg.name] = result.name
                spec.arg.name = result.name
        _update_calls(program, nodes, renamed)
    return report


def _update_calls(
    program: ExportedProgram, nodes: Mapping[str, fx.Node], renamed: Mapping[str, str]
) -> None:
    """Rename the results in the signature of the program's call, and drop those of submodules of
    which a value is gone.
    """
    left = {*program.graph.nodes}
    for entry in program.module_call_graph:
        signature = entry.signature
        if signature is None:
            continue
        if not entry.fqn:
            for result in signature.outputs:
                result.name = renamed.get(result.name, result.name)
            continue
        values = [nodes.get(each.name) for each in (*signature.inputs, *signature.outputs)]
        if any(value is not None and value not in left for value in values):
            entry.signature = None


@dataclass(frozen=True)
class Folded:
    """A module whose constants are computed.

    `moved` is the largest difference from the program's results on its example inputs, relative to
    the largest number in the same result; only floating-point and complex results count. If the
    tolerance was exceeded, `report` is empty, and the module computes what the program computes.
    """

    module: fx.GraphModule
    report: Report
    moved: float


def fold(program: ExportedProgram, rules: Rules, *, tolerance: float = 1e-5) -> Folded:
    """Return the module of a program, rewritten, with all that its weights alone decide computed.

    Arguments:
        program: a program without writes to inputs and buffers, which stays as it is. Its weights
            are constants from now on: the module is for inference. A result that no input decides
            is the module's own tensor, not to be written to.
        rules: the rules to apply before that; may be an empty list.
        tolerance: bound on how far the rewrites may move the results on the program's example
            inputs. If one differs more, the program is left without any.

    Raises PyPMError if `program` is not an exported program, writes to an input or a buffer, calls
    an operator whose effects are unknown, or has no example inputs, and whatever `rewrite` raises.
    """
    check_program(program, "pypm.integrations.export.fold")
    ours = program.run_decompositions({})  # a copy in which writes are operators without effects
    module = ours.module()
    for node in module.graph.nodes:
        if node.op == "call_function" and mutates(node):
            raise PyPMError(_refusal(effects(node).unknown))
    if program.example_inputs is None:
        raise PyPMError(Diagnostic("the program has no example inputs to compare results on"))
    report = rewrite(ours, rules)
    rewritten = _with_constants(ours.module())
    args, kwargs = program.example_inputs
    with torch.no_grad():
        moved = _distance(rewritten(*args, **kwargs), module(*args, **kwargs))
    if moved <= tolerance:
        return Folded(rewritten, report, moved)
    return Folded(_with_constants(module), Report(), moved)


def _refusal(unknown: str | None) -> Diagnostic:
    """Return why a program cannot be folded: for a write, or an operator with unknown effects."""
    if unknown is not None:
        return Diagnostic(f"the program calls `{unknown}`, whose effects are unknown")
    help = "export the model in evaluation mode, and return what it writes as a result"
    return Diagnostic("a program that writes to an input or a buffer cannot be folded", help=help)


def _with_constants(module: fx.GraphModule) -> fx.GraphModule:
    """Replace the nodes of a graph without writes that depend on attributes alone, in place."""
    values: dict[fx.Node, fx.node.Argument] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr" and isinstance(value := _attribute(module, node), Tensor):
            values[node] = value
        elif node.op == "call_function" and node.all_input_nodes and is_pure(node):
            if not values.keys() >= {*node.all_input_nodes}:
                continue
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            with torch.no_grad():
                values[node] = node.target(*args, **kwargs)
    computed = [node for node in values if node.op == "call_function"]
    names = (name for name in map("_constant_{}".format, count()) if not hasattr(module, name))
    for node in computed:
        value = values[node]
        if isinstance(value, Tensor) and not values.keys() >= node.users.keys():
            name = next(names)
            module.register_buffer(name, value)
            with module.graph.inserting_before(node):
                constant = module.graph.get_attr(name)
            constant.meta = dict(node.meta)
            node.replace_all_uses_with(constant)
    module.graph.eliminate_dead_code()
    used = {node.target for node in module.graph.nodes if node.op == "get_attr"}
    tensors = (module.named_parameters, module.named_buffers)
    for name in [name for each in tensors for name, _ in each(remove_duplicate=False)]:
        if name not in used:
            owner, _, leaf = name.rpartition(".")
            delattr(module.get_submodule(owner), leaf)
    module.graph.lint()
    module.recompile()
    return module


def _attribute(module: fx.GraphModule, node: fx.Node) -> object:
    owner, _, leaf = str(node.target).rpartition(".")
    found: object = getattr(module.get_submodule(owner), leaf)
    return found


def _distance(ours: object, theirs: object) -> float:
    """Return the largest difference of two results, each relative to its largest number."""
    largest = 0.0
    for a, b in zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True):
        if isinstance(b, Tensor) and (b.is_floating_point() or b.is_complex()) and b.numel():
            difference = (a - b).abs().max().item() / (b.abs().max().item() or 1.0)
            largest = max(largest, difference if math.isfinite(difference) else math.inf)
    return largest
