"""Calls of operators in patterns: tests of their arguments, and the order of their children."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pypm.core.guard_origins import equality, truth
from pypm.core.guards import FUNCTIONS, Apply, Attribute, Constant, Expression, Guard
from pypm.core.operators import REQUIRED, Operator, Parameter
from pypm.core.patterns import Alt, Constrained, Exists, Guarded, Let, Op, Pattern, Var
from pypm.core.terms import argument_name
from pypm.lang.guard_expressions import expression
from pypm.lang.overloads import bind, in_form
from pypm.lang.scope import Scope, is_anything

if TYPE_CHECKING:
    from pypm.core.terms import Value
    from pypm.diagnostics import Span

__all__ = ["Application", "Operand", "same"]


def same(tested: Expression, value: Value, span: Span | None) -> Guard:
    """Return the guard that a value is this constant: floats within 1e-6, the rest exactly."""
    if isinstance(value, float):
        return truth(Apply(FUNCTIONS["close"], (tested, Constant(value))), span, is_argument=True)
    return equality(tested, Constant(value), span, is_argument=True)


def _shown(parameters: tuple[Parameter, ...]) -> str:
    shown = [p.name if p.default is REQUIRED else f"{p.name}={p.default}" for p in parameters]
    return f"({', '.join(shown)})"


@dataclass(frozen=True, slots=True)
class Operand:
    """A child of an operator: a pattern, or a name with the pattern that it must still match."""

    pattern: Pattern
    name: str = ""
    described: Pattern | None = None


class Application:
    """One call of an operator, and the node that it matches, which has the core name `name`.

    Raises PatternError if no overload takes the arguments.
    """

    def __init__(
        self,
        scope: Scope,
        called: Operator,
        arguments: list[ast.expr],
        keywords: list[ast.keyword],
        node: ast.expr,
        name: str,
    ) -> None:
        bound = bind(called, arguments, keywords, scope)
        if isinstance(bound, str):
            raise scope.error(
                f"`{called}` cannot be called so: {bound}",
                node,
                "wrong arguments",
                "; ".join(f"{called}{_shown(s.parameters)}" for s in called.signatures[:4]),
            )
        self._scope = scope
        self._called = called.canonical
        self._bound = bound if called.form is None else in_form(bound, called.form, node)
        self._name = name
        self.span = scope.span(node)
        self._computed: list[Guarded] = []
        """Guards on attributes that read other variables, which the children may have to bind."""
        self._tests = self._attribute_tests()

    @property
    def is_mirrored(self) -> bool:
        """Return whether the first two children may also come in the other order."""
        return self._called.commutes is not None or self._called.mirror is not None

    @property
    def children(self) -> list[ast.expr | Parameter | None]:
        """Return for each child its expression, None for anything, or the parameter if omitted."""
        bound = self._bound
        return [
            parameter if parameter in bound.omitted else bound.given[parameter.name]
            for parameter in bound.signature.children
        ]

    def pattern(self, operands: list[Operand]) -> Pattern:
        """Return the pattern of the call, given those of its children.

        It is `exists n. n; guard(n.alpha = ...); (f(p, ...) <= n)`: attributes are tested first, by
        the name n of the node.
        """
        written = Op(self._called, tuple(o.pattern for o in operands), span=self.span)
        applied = self._mirrored(written, operands) if self.is_mirrored else written
        if self._tests == Var(self._name) and not self._called.commutes and not self._computed:
            return applied
        result: Pattern = Constrained(self._tests, applied, self._name)
        for guarded in self._computed:
            result = replace(guarded, body=result)
        return Exists(self._name, result)

    def _attribute_tests(self) -> Pattern:
        """Return the node's variable, with guards and lets for the attributes of the call."""
        bound, name, span = self._bound, self._name, self.span
        pattern: Pattern = Var(name)
        for parameter in bound.signature.attributes:
            attribute = Attribute(name, argument_name(parameter.name))
            if parameter in bound.omitted:
                test = self._is_value(attribute, parameter.default, parameter, span)
                pattern = Guarded(pattern, test, span)
            else:
                argument = bound.given[parameter.name]
                if argument is not None:
                    pattern = self._attribute(pattern, parameter, attribute, argument)
        if not bound.open_ended:
            said = {parameter.name for parameter in bound.signature.parameters}
            for other, default in self._called.attribute_defaults.items():
                if other not in said:
                    pattern = Guarded(
                        pattern, same(Attribute(name, argument_name(other)), default, span), span
                    )
        return pattern

    def _attribute(
        self, pattern: Pattern, parameter: Parameter, attribute: Attribute, argument: ast.expr
    ) -> Pattern:
        """Return `pattern` with the test of an attribute against an argument.

        The argument is a constant, a value computed from variables, or a variable to bind.
        """
        span = self._scope.span(argument)
        variable = self._scope.variable(argument)
        if variable is not None:
            return Let(pattern, variable.core, attribute, span)
        if self._scope.is_constant(argument):
            value = self._scope.argument(argument)
            return Guarded(pattern, self._is_value(attribute, value, parameter, span), span)
        if isinstance(argument, ast.List | ast.Tuple):
            return self._attribute_items(pattern, parameter, attribute, argument)
        self._is_computed(attribute, argument)
        return pattern

    def _is_value(
        self, tested: Expression, value: Value, parameter: Parameter, span: Span
    ) -> Guard:
        """Return the guard that an argument, or an item of one, has a constant value."""
        if parameter.dimension and value is not None:
            rank = Attribute(self._name, "dimension_rank")
            compared = Apply(FUNCTIONS["same_dims"], (tested, Constant(value), rank))
            return truth(compared, span, is_argument=True)
        return same(tested, value, span)

    def _attribute_items(
        self,
        pattern: Pattern,
        parameter: Parameter,
        attribute: Expression,
        argument: ast.List | ast.Tuple,
    ) -> Pattern:
        """Return `pattern` with the tests of a list, each item a value or a variable to bind."""
        items, span = argument.elts, self._scope.span(argument)
        length = Apply(FUNCTIONS["len"], (attribute,))
        pattern = Guarded(pattern, equality(length, Constant(len(items)), span), span)
        for index, item in enumerate(items):
            span = self._scope.span(item)
            found = Apply(FUNCTIONS["item"], (attribute, Constant(index)))
            variable = self._scope.variable(item)
            if variable is not None:
                pattern = Let(pattern, variable.core, found, span)
            elif self._scope.is_constant(item):
                constant = self._scope.argument(item)
                pattern = Guarded(pattern, self._is_value(found, constant, parameter, span), span)
            elif isinstance(item, ast.List | ast.Tuple):
                pattern = self._attribute_items(pattern, parameter, found, item)
            elif not is_anything(item):
                self._is_computed(found, item)
        return pattern

    def _is_computed(self, tested: Expression, argument: ast.expr) -> None:
        """Record that an argument, or an item of one, has a value computed from variables."""
        span = self._scope.span(argument)
        test = equality(tested, expression(argument, self._scope), span, is_argument=True)
        self._computed.append(Guarded(Var(self._name), test, span))

    def _mirrored(self, written: Op, operands: list[Operand]) -> Pattern:
        """Return the pattern with both orders of the first two children.

        Their patterns follow as constraints, so that none is copied:
        `exists u v. (f(u, v) | f(v, u)); (p <= u); (q <= v)`. The second f is the mirror of f, if
        it has one.
        """
        called, span = self._called, self.span
        left, right, *others = written.arguments
        swapped: Pattern = Op(called.mirror or called, (right, left, *others), span=span)
        for attribute, value in called.commutes or ():
            condition = same(Attribute(self._name, argument_name(attribute)), value, span)
            swapped = Guarded(swapped, condition, span)
        is_same = left == right if called.mirror is None else self._ends_in_a_literal()
        result: Pattern = written if is_same else Alt(written, swapped)
        later = [(o.name, o.described) for o in operands if o.described is not None]
        for name, described in later:
            result = Constrained(result, described, name)
        for name, _ in reversed(later):
            if not self._scope.declares(name):
                result = Exists(name, result)
        return result

    def _ends_in_a_literal(self) -> bool:
        """Return whether the second child is a number, which never comes first in torch."""
        argument = self._bound.given.get(self._bound.signature.children[1].name)
        return argument is not None and self._scope.is_constant(argument)
