"""Elaborate one definition: its returned expression, and the conditions around it.

A local name stands for its pattern at its first use and for the same value afterwards;
constraints, guards and lets follow in the order written.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from pypm.core.guards import Constant
from pypm.core.patterns import Constrained, Exists, Guarded, Let, Pattern, Var
from pypm.core.wellformed import bound_after_all, is_wellformed
from pypm.lang.capture import is_comparable
from pypm.lang.declare import Declaration
from pypm.lang.guard_expressions import asserted, expression
from pypm.lang.pattern_expressions import OtherPatterns, PatternExpressions, Uses
from pypm.lang.scope import Scope, names_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pypm.lang.named_pattern import NamedPattern

__all__ = ["output_sources", "outputs", "whole"]


def whole(declared: Declaration, others: OtherPatterns) -> Pattern:
    """Return a definition as one pattern, its locals declared. Raises PatternError."""
    scope, returned = declared.scope, declared.returned
    if isinstance(returned, ast.Tuple):
        raise scope.error(
            f"pattern `{declared.form.name}` returns several outputs here",
            returned,
            "a tuple",
            "a pattern with several outputs is one definition, and no pattern calls it",
        )
    elaborated = _elaborated(declared, others)
    (result,) = _conditioned([elaborated.pattern(returned)], elaborated)
    for variable in reversed(scope.locals):
        if variable.core in elaborated.uses.undeclared:
            result = Exists(variable.core, result)
    return result


def outputs(
    declared: Declaration, others: OtherPatterns, present: tuple[int, ...] | None = None
) -> tuple[Pattern, ...]:
    """Return the roots of a definition that returns a tuple; its locals stay free, to be shared.

    With `present`, of these outputs only; locals that none of them mentions are then unknown.
    Raises PatternError.
    """
    assert isinstance(declared.returned, ast.Tuple)
    returned = declared.returned.elts
    wanted = range(len(returned)) if present is None else present
    elaborated = _elaborated(declared, others)
    roots = [elaborated.pattern(returned[output]) for output in wanted]
    if present is not None:
        scope = declared.scope.without(elaborated.uses.pending)
        elaborated = elaborated.within(scope)
    return _conditioned(roots, elaborated)


def output_sources(declared: Declaration) -> list[str | None]:
    """Return for each output that is an item of a local (`a, b = f(x)`) the local; else None."""
    assert isinstance(declared.returned, ast.Tuple)
    sources: list[str | None] = []
    for output in declared.returned.elts:
        variable = declared.scope.variable(output)
        meant = output if variable is None else variable.meaning
        item_of = meant.value if isinstance(meant, ast.Subscript) else None
        sources.append(item_of.id if isinstance(item_of, ast.Name) else None)
    return sources


def _elaborated(declared: Declaration, others: OtherPatterns) -> PatternExpressions:
    local = declared.scope.locals
    pending = {variable.core for variable in local if variable.meaning is not None}
    return PatternExpressions(declared, others, Uses(pending, {each.core for each in local}))


_Condition: TypeAlias = Constrained | Guarded | Let
_NOTHING: Final = Var("_")
"""Stands for the pattern that a condition will be put around."""


def _conditioned(roots: list[Pattern], elaborated: PatternExpressions) -> tuple[Pattern, ...]:
    """Put each condition around the first root after which all that it reads is bound."""
    for condition in _conditions(elaborated):
        last = len(roots) - 1
        bound = (bound_after_all(roots[: index + 1]) for index in range(last))
        at = next((i for i, names in enumerate(bound) if is_wellformed(condition, names)), last)
        roots[at] = replace(condition, body=roots[at])
    return tuple(roots)


def _conditions(elaborated: PatternExpressions) -> Iterator[_Condition]:
    """Yield the constraints, guards, lets and defaults in order, each around nothing yet."""
    declared = elaborated.declared
    form, scope = declared.form, declared.scope
    for statement in declared.statements:
        match statement:
            case ast.Expr(value=ast.Compare(left=ast.Name() as name, comparators=[other])):
                # guards that follow may read arguments of the operators that `other` names
                scope = _constrained(name, other, scope)
                constraint = elaborated.within(scope).pattern(other)
                core, span = scope.variables[name.id].core, scope.span(other)
                yield Constrained(_NOTHING, constraint, core, span)
            case ast.Assert(test=test):
                yield Guarded(_NOTHING, asserted(statement, scope), scope.span(test))
            case ast.Expr(value=ast.Call(keywords=keywords)):
                yield from (_let(keyword, scope) for keyword in keywords)
    _check_locals(scope, form, elaborated.uses)
    for parameter in form.parameters:
        if form.is_optional(parameter) and not _says(declared.statements, parameter):
            default = Constant(form.defaults[parameter])
            yield Let(_NOTHING, scope.variables[parameter].core, default)


def _constrained(name: ast.Name, other: ast.expr, scope: Scope) -> Scope:
    """Return the scope where a variable has the arguments of what it is constrained by."""
    variable = scope.variable(name)
    if variable is None:
        raise scope.error(
            f"`{name.id}` is not a variable of this pattern",
            name,
            "only a variable can be constrained",
            f"make `{name.id}` a parameter, or declare it: `{name.id} = var()`",
        )
    attributes = variable.attributes | scope.arguments_of(other)
    return scope.with_variable(name.id, replace(variable, attributes=attributes))


def _let(keyword: ast.keyword, scope: Scope) -> Let:
    if keyword.arg is None:
        raise scope.error(
            "`let` takes named values", keyword.value, "not named", "write `let(s=...)`"
        )
    value = expression(keyword.value, scope)
    if isinstance(value, Constant) and not is_comparable(value.value):
        raise scope.incomparable(value.value, keyword.value)
    span = scope.span(keyword.value)
    return Let(_NOTHING, scope.variables[keyword.arg].core, value, span)


def _check_locals(scope: Scope, form: NamedPattern, uses: Uses) -> None:
    """Raise PatternError for a local whose meaning was matched nowhere."""
    for name, variable in scope.variables.items():
        if variable.meaning is not None and variable.core in uses.pending - uses.described:
            raise scope.error(
                f"`{name}` is not part of what pattern `{form.name}` returns",
                variable.meaning,
                "matched against nothing",
                "use it in the returned pattern, or remove it",
            )


def _says(statements: list[ast.stmt], parameter: str) -> bool:
    """Return whether statements mention a parameter where it could be bound."""
    for statement in statements:
        match statement:
            case ast.Assert():
                continue
            case ast.Expr(value=ast.Call(keywords=keywords)):
                if any(keyword.arg == parameter for keyword in keywords):
                    return True
            case _ if parameter in names_in(statement):
                return True
    return False
