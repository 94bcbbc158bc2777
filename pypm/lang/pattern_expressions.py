"""Expressions that are patterns: variables, operators, alternates, calls of named patterns."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from pypm.core.guard_origins import CALL, NUMBER, class_test
from pypm.core.guards import FUNCTIONS, Apply, Attribute, Constant, Holds, Reference
from pypm.core.operators import CONS, GETITEM, LITERAL, NIL, Operator, Parameter
from pypm.core.patterns import (
    Alt,
    Constrained,
    Exists,
    Fun,
    Guarded,
    Let,
    Op,
    Pattern,
    Var,
    alternation,
)
from pypm.core.terms import VALUE, Value
from pypm.lang.keep import kept
from pypm.lang.named_pattern import Marker, NamedPattern
from pypm.lang.operator_calls import Application, Operand, same
from pypm.lang.overloads import (
    COMPARISONS,
    INFIX,
    NEGATE,
    not_a_pattern,
    not_callable,
    pattern_arguments,
)
from pypm.lang.scope import Scope, Variable, is_anything
from pypm.lang.subscripts import index_of, view_of, views_of

if TYPE_CHECKING:
    from pypm.diagnostics import Span
    from pypm.lang.declare import Declaration

__all__ = ["OtherPatterns", "PatternExpressions", "Uses"]

_WIDEST: Final = 4
"""The largest number of children at which `f(..., p, ...)` looks."""


class OtherPatterns(Protocol):
    """The elaborator, as the elaboration of one definition uses it."""

    def fresh(self, name: str) -> str:
        """Return a core name that no other variable has."""

    def below(self) -> OtherPatterns:
        """Return the elaborator for an operator's children."""

    def enter(self, called: NamedPattern, actuals: tuple[str, ...], span: Span | None) -> Pattern:
        """Return a call of a named pattern with variables as its arguments."""

    def reach_through(self, form: NamedPattern, pattern: Pattern) -> Pattern:
        """Return `pattern`, also matched below operators that `form` describes."""


@dataclass
class Uses:
    """The locals of a definition, by core name, as far as they were elaborated."""

    pending: set[str]
    """Locals whose meaning is matched at their next use."""
    undeclared: set[str]
    """Locals that no part of the pattern declares."""
    described: set[str] = field(default_factory=set)
    """Locals whose meaning has been matched somewhere."""


@dataclass(frozen=True)
class PatternExpressions:
    """Elaboration of the expressions of one definition."""

    declared: Declaration
    others: OtherPatterns
    uses: Uses

    @property
    def _scope(self) -> Scope:
        return self.declared.scope

    def within(self, scope: Scope) -> PatternExpressions:
        """Return the same elaboration in another scope."""
        return replace(self, declared=replace(self.declared, scope=scope))

    def _below(self) -> PatternExpressions:
        """Return the elaboration of an operator's children."""
        others = self.others.below()
        return self if others is self.others else replace(self, others=others)

    def _fresh(self, name: str) -> str:
        return self.others.fresh(name)

    def pattern(self, node: ast.expr) -> Pattern:
        """Return the pattern that an expression describes. Raises PatternError."""
        variable = self._scope.variable(node)
        match node:
            case _ if variable is not None:
                return self._variable(variable, node)
            case _ if is_anything(node):
                return self._anything()
            case ast.BinOp(op=ast.BitOr(), left=left, right=right):
                return self._alternates(left, right)
            case ast.List(elts=elements):
                return self._list(elements)
            case _ if self._scope.is_constant(node):
                return self._literal(self._scope.constant(node), node)
            case ast.BinOp(op=op, left=left, right=right) if type(op) in INFIX:
                return self._applied(INFIX[type(op)], [left, right], [], node)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._applied(NEGATE, [operand], [], node)
            case ast.Compare(ops=[op], left=left, comparators=[right]) if type(op) in COMPARISONS:
                return self._applied(COMPARISONS[type(op)], [left, right], [], node)
            case ast.Subscript():
                return self._subscript(node)
            case ast.Call():
                return self._call(node)
        raise not_a_pattern(node, self._scope)

    def _variable(self, variable: Variable, node: ast.expr) -> Pattern:
        if variable.is_operator:
            raise self._scope.error(
                f"operator variable `{ast.unparse(node)}` stands where a value should",
                node,
                "not called",
                f"call it: `{ast.unparse(node)}(x)`",
            )
        named = Var(variable.core, span := self._scope.span(node))
        if variable.core not in self.uses.pending:
            return named
        return Constrained(named, self._described(node), variable.core, span)

    def _anything(self) -> Pattern:
        return Exists(name := self._fresh("_"), Var(name))

    def _alternates(self, left: ast.expr, right: ast.expr) -> Pattern:
        uses = self.uses
        before = set(uses.pending)
        first = self._branch(left, right)
        after_first, uses.pending = uses.pending, before
        second = self._branch(right, left)
        uses.pending |= after_first  # those that are still to be described after either branch
        return Alt(first, second)

    def _branch(self, branch: ast.expr, other: ast.expr) -> Pattern:
        """Return the pattern of one branch of `|`.

        It binds optional parameters that only the other branch mentions to their defaults, and
        declares the locals that only this branch mentions.
        """
        form, undeclared = self.declared.form, self.uses.undeclared
        own = self._own_locals(branch)
        optional = {*filter(form.is_optional, form.parameters)}
        if optional:
            optional &= self._scope.mentioned(other) - self._scope.mentioned(branch)
        pattern = self.pattern(branch)
        for name in form.parameters:
            if name in optional:
                core = self._scope.variables[name].core
                pattern = Let(pattern, core, Constant(form.defaults[name]))
        for variable in own:
            if variable.core in undeclared:
                undeclared.remove(variable.core)
                pattern = Exists(variable.core, pattern)
        return pattern

    def _own_locals(self, branch: ast.expr) -> list[Variable]:
        """Return the locals mentioned only in `branch`, or in the meanings of such locals."""
        if not self.uses.undeclared:
            return []
        described = {
            name: variable.meaning
            for name, variable in self._scope.variables.items()
            if variable.meaning is not None
        }
        others = [s for s in self.declared.statements if not isinstance(s, ast.Assign)]
        parts = [part for root in [*others, *described.values()] for part in ast.walk(root)]
        lets = [s.value for s in others if isinstance(s, ast.Expr)]
        set_by_let = {k.arg for let in lets if isinstance(let, ast.Call) for k in let.keywords}
        inside = set(ast.walk(branch))
        own: dict[str, Variable] = {}
        while True:
            outside = {p.id for p in parts if isinstance(p, ast.Name) and p not in inside}
            more = {
                name: variable
                for name, variable in self._scope.variables.items()
                if variable.core in self.uses.undeclared and name not in own
                if name not in outside and name not in set_by_let
            }
            if not more:
                return list(own.values())
            own |= more
            inside.update(*[ast.walk(described[name]) for name in more if name in described])

    def _applied(
        self,
        called: Operator,
        arguments: list[ast.expr],
        keywords: list[ast.keyword],
        node: ast.expr,
    ) -> Pattern:
        call = Application(self._scope, called, arguments, keywords, node, self._fresh(CALL))
        below = self._below()
        operands = [below._child(child, call) for child in call.children]
        return self._through(call.pattern(operands))

    def _child(self, child: ast.expr | Parameter | None, call: Application) -> Operand:
        if isinstance(child, Parameter):
            return Operand(self._number(child.default, call.span))
        if child is None:
            return Operand(self._anything())
        if isinstance(child, ast.Tuple):
            return Operand(self._list(child.elts))
        if not call.is_mirrored or self._scope.is_constant(child):
            return Operand(self.pattern(child))
        return self._operand(child)

    def _literal(self, value: Value, node: ast.expr) -> Pattern:
        if isinstance(value, Operator | NamedPattern):
            kind = "operator" if isinstance(value, Operator) else "pattern"
            raise self._scope.error(
                f"{kind} `{ast.unparse(node)}` stands where a value should",
                node,
                "not called",
                f"call it: `{ast.unparse(node)}(...)`",
            )
        if not (value is None or isinstance(value, bool | int | float | complex | str)):
            raise self._scope.error(
                f"`{ast.unparse(node)}` is a {type(value).__name__}, not a pattern",
                node,
                "stands where a value should",
                "only numbers, strings and None are literals",
            )
        return self._number(value, self._scope.span(node))

    def _number(self, value: Value, span: Span | None) -> Pattern:
        name = self._fresh(NUMBER)
        test = Guarded(Var(name), same(Attribute(name, VALUE), value, span), span)
        return Exists(name, Constrained(test, Op(LITERAL, (), span=span), name))

    def _list(self, elements: list[ast.expr]) -> Pattern:
        if elements and isinstance(elements[-1], ast.Starred):
            tail: ast.expr | None = elements[-1].value
            elements = elements[:-1]
        else:
            tail = None
        below = self._below()
        patterns = [below.pattern(element) for element in elements]
        rest = Op(NIL, ()) if tail is None else below.pattern(tail)
        for pattern in reversed(patterns):
            rest = Op(CONS, (pattern, rest))
        return rest

    def _call(self, node: ast.Call) -> Pattern:
        variable = self._scope.variable(node.func)
        if variable is not None:
            return self._operator_variable(variable, node)
        if not self._scope.is_python(node.func):
            raise not_callable(node, self._scope)
        called = self._scope.resolve(node.func)
        if isinstance(called, Operator):
            return self._applied(called, node.args, node.keywords, node)
        if isinstance(called, NamedPattern):
            return self._named(node)
        if isinstance(called, Marker):
            return self._marked(called, node)
        raise not_callable(node, self._scope)

    def _marked(self, marker: Marker, node: ast.Call) -> Pattern:
        if marker.name == "keep" and len(node.args) == 1 and not node.keywords:
            return kept(self.pattern(node.args[0]))
        uses = {
            "keep": "`keep` takes one pattern: `keep(p)`",
            "let": "write it as a statement of its own: `let(s=...)`",
            "op_var": "give it a name first: `f = op_var()`, then `f(x)`",
            "var": "give it a name first: `c = var()`; where any value will do, write `_`",
        }
        raise self._scope.error(
            f"`{marker.name}` cannot be used here", node, "not a pattern", uses[marker.name]
        )

    def _operator_variable(self, variable: Variable, node: ast.Call) -> Pattern:
        name = ast.unparse(node.func)
        if not variable.is_operator:
            raise self._scope.error(
                f"`{name}` is called, but it is not an operator variable",
                node.func,
                "stands for a value",
                f"declare it as one: `{name} = op_var()`",
            )
        if node.keywords:
            raise self._scope.error(
                f"operator variable `{name}` is called with a named argument",
                node.keywords[0],
                "operators that it may stand for have no arguments in common",
                "give it patterns for its children, in order",
            )
        span = self._scope.span(node)
        met: Operand | None = None
        match node.args:
            case [ast.Constant(value=first), inner, ast.Constant(value=last)] if (
                first is Ellipsis and last is Ellipsis
            ):
                met = self._below()._operand(inner)
                pattern = self._anywhere(variable.core, met.name, span)
            case arguments:
                children = tuple(map(self._below().pattern, arguments))
                pattern = Fun(variable.core, children, span=span)
        if variable.tag is not None:
            name = self._fresh(CALL)
            tagged = Guarded(Var(name), class_test(name, variable.tag, span), span)
            pattern = Exists(name, Constrained(tagged, pattern, name))
        pattern = self._through(pattern)
        return pattern if met is None else self._declared(met, pattern)

    def _anywhere(self, function: str, met: str, span: Span) -> Pattern:
        """Return `F(u) | F(u, _) | F(_, u) | ...`, with the child u at any position."""
        places: list[Pattern] = []
        for arity in range(1, _WIDEST + 1):
            for position in range(arity):
                children = [self._anything() for _ in range(arity)]
                children[position] = Var(met)
                places.append(Fun(function, tuple(children), span=span))
        return alternation(places)

    def _operand(self, node: ast.expr) -> Operand:
        """Return a name for the value of an expression, with the pattern that it must match."""
        variable = self._scope.variable(node)
        if variable is None or variable.is_operator:
            name = self._fresh("part")
            described: Pattern | None = self.pattern(node)
        else:
            name = variable.core
            described = self._described(node) if name in self.uses.pending else None
        return Operand(Var(name, self._scope.span(node)), name, described)

    def _declared(self, operand: Operand, pattern: Pattern) -> Pattern:
        """Return a pattern that mentions an operand by name, with what the operand must match."""
        if operand.described is not None:
            pattern = Constrained(pattern, operand.described, operand.name)
        return pattern if self._scope.declares(operand.name) else Exists(operand.name, pattern)

    def _subscript(self, node: ast.Subscript) -> Pattern:
        """Return a call of `getitem`, or else of the views that torch records for the index."""
        index, views = index_of(node.slice, self._scope), views_of(node.slice, self._scope)
        if views is None:
            return self._applied(GETITEM, [node.value, index], [], node)

        def apply(called: Operator, x: Pattern, arguments: list[ast.expr]) -> Pattern:
            given = [node.value, *arguments]
            call = Application(self._scope, called, given, [], node, self._fresh(CALL))
            return self._through(call.pattern([Operand(x)]))

        named = self._below()._operand(node.value)
        viewed = view_of(named.pattern, views, apply, partial(self._fresh, "part"))
        return self._declared(named, Alt(apply(GETITEM, named.pattern, [index]), viewed))

    def _through(self, pattern: Pattern) -> Pattern:
        """Return the pattern of an operator, which may be reached through others."""
        through = self.declared.form.through
        return pattern if through is None else self.others.reach_through(through, pattern)

    def _named(self, node: ast.Call) -> Pattern:
        """Return the call of a named pattern: for an argument e, `exists y. P(y); (e <= y)`."""
        called, arguments = pattern_arguments(node, self._scope)
        actuals: list[str] = []
        fresh: list[str] = []
        fixed: list[tuple[str, object]] = []
        described: list[tuple[str, ast.expr]] = []
        for parameter, argument in arguments.items():
            variable = None if argument is None else self._scope.variable(argument)
            if variable is None:
                fresh.append(self._fresh(parameter))
            actuals.append(fresh[-1] if variable is None else variable.core)
            if argument is None:
                fixed.append((actuals[-1], called.defaults[parameter]))
            elif variable is not None:
                if variable.core in self.uses.pending:
                    described.append((actuals[-1], argument))
            elif self._scope.is_constant(argument):
                fixed.append((actuals[-1], self._scope.argument(argument)))
            elif not is_anything(argument):
                described.append((actuals[-1], argument))
        span = self._scope.span(node)
        result = self.others.enter(called, tuple(actuals), span)
        for name, value in fixed:
            same_value = Apply(FUNCTIONS["is_value"], (Reference(name), Constant(value)))
            result = Guarded(result, Holds(same_value, span), span)
        for name, argument in described:
            result = Constrained(result, self._described(argument), name, span)
        for name in reversed(fresh):
            result = Exists(name, result)
        return result

    def _described(self, node: ast.expr) -> Pattern:
        """Return the pattern of an expression: at the first use of a local, of its meaning."""
        variable = self._scope.variable(node)
        if variable is None or variable.core not in self.uses.pending:
            return self.pattern(node)
        assert variable.meaning is not None
        self.uses.pending.remove(variable.core)
        self.uses.described.add(variable.core)
        return self.pattern(variable.meaning)
