"""Replacements that are data: the operators they call, and their calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from pypm.core.operators import CONS, LITERAL, NIL, REQUIRED, Operator
from pypm.core.patterns import Op, Var
from pypm.core.rules import Build, Rule, Template
from pypm.core.terms import Value
from pypm.core.traverse import parts
from pypm.diagnostics import Diagnostic
from pypm.fx.operators.schemas import packet
from pypm.fx.tracing.text_operators import Use, objection
from pypm.torch_internals import OpOverloadPacket

__all__ = ["build", "exists", "objections", "objections_to_calls", "template_parts"]


def template_parts(template: object) -> Iterator[Template]:
    """Yield a template and all templates inside it, outermost first.

    Yield nothing if `template` is a Python function.
    """
    todo = [template] if isinstance(template, Var | Build) else []
    while todo:
        part = todo.pop()
        yield part
        if isinstance(part, Build):
            todo += reversed(part.arguments)


def exists(operator: Operator) -> bool:
    """Return whether a template can call an operator: torch's, or one for literals and lists."""
    try:
        return operator in (LITERAL, CONS, NIL) or packet(operator.name) == operator
    except AttributeError:
        return False


def objections(rule: Rule) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each operator that a rule may not name if it comes from text."""
    for root in rule.roots:
        for part in parts(root):
            if isinstance(part, Op):
                yield from _objections(part, "match", rule)
    yield from objections_to_calls(rule)


def objections_to_calls(rule: Rule) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each torch operator that a template may not call.

    Yield nothing if the rule's replacement is a Python function.
    """
    for part in template_parts(rule.replacement):
        if isinstance(part, Build) and exists(part.operator):
            yield from _objections(part, "call", rule)


def _objections(part: Op | Build, use: Use, rule: Rule) -> Iterator[Diagnostic]:
    found = objection(part.operator, use, rule.redraws)
    if found is not None:
        reason, help = found
        message = f"a rule in text may not {use} `{part.operator}`"
        yield Diagnostic(message, part.span or rule.span, reason, help)


def build(template: Template, bindings: Mapping[str, Value]) -> Value:
    """Return the value of a template: call its operators, innermost first.

    Arguments:
        template: a variable, or a call of an operator on templates.
        bindings: the values of variables, by name.

    Raises TypeError if the template calls a name of `torch.ops` that is not an operator, and
    whatever the operators raise.
    """
    if isinstance(template, Var):
        return bindings[template.name]
    arguments = [build(argument, bindings) for argument in template.arguments]
    if template.operator == LITERAL:
        return dict(template.attributes)["value"]
    if template.operator == NIL:
        return []
    if template.operator == CONS:
        return [arguments[0], *arguments[1]]  # type: ignore[misc]
    namespace, _, name = template.operator.name.rpartition(".")
    packet: object = getattr(getattr(torch.ops, namespace), name)
    if not isinstance(packet, OpOverloadPacket):  # `torch.ops` has functions, too
        raise TypeError(f"`{template.operator.name}` is no operator of torch")
    args, kwargs = _positional(template, arguments)
    return packet(*args, **kwargs)


def _positional(build: Build, arguments: list[Value]) -> tuple[list[Value], dict[str, Value]]:
    """Return the positional and the keyword arguments of a call.

    Arguments are positional up to the first parameter that the call leaves out.
    """
    named = dict(build.attributes)
    signature = next(
        (
            s
            for s in build.operator.signatures
            if len(s.children) == len(arguments)
            and set(named) <= {p.name for p in s.attributes}
            and all(p.default is not REQUIRED or p.name in named for p in s.attributes)
        ),
        None,
    )
    if signature is None:
        return arguments, named
    children = iter(arguments)
    args: list[object] = []
    kwargs: dict[str, object] = {}
    for parameter in signature.parameters:
        if parameter.kind != "attribute":
            value = next(children)
        elif parameter.name in named:
            value = named[parameter.name]
        else:
            value = REQUIRED
        if value is REQUIRED:
            continue
        gap = len(args) + len(kwargs) != signature.parameters.index(parameter)
        if kwargs or gap or parameter.keyword_only:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    return args, kwargs
