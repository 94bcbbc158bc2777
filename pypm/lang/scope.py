"""The scope of one definition: its variables, and the names of Python around it."""

from __future__ import annotations

import ast
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Final

from pypm.core.operators import Operator
from pypm.core.records import Record, record
from pypm.core.terms import DERIVED, VALUE, Value, argument_name
from pypm.diagnostics import PatternError, Span
from pypm.lang.capture import Captured, Located, frozen, is_comparable
from pypm.lang.record_shapes import Shape

__all__ = ["ATTRIBUTES", "OPERATOR_ATTRIBUTES", "Scope", "Variable", "is_anything", "names_in"]

ATTRIBUTES: Final = DERIVED - {"dimension_rank"} | {VALUE}
"""Attributes that every term has, in addition to the arguments of its operator."""
OPERATOR_ATTRIBUTES: Final = frozenset({"name", "tags"})


@dataclass(frozen=True, slots=True)
class Variable:
    """A name of the definition: the core name it stands for, and its attributes."""

    core: str
    is_operator: bool = False
    attributes: frozenset[str] = frozenset()
    """Arguments of the operators it is known to be, beyond `ATTRIBUTES`."""
    tag: str | None = None
    """The operator class of an operator variable."""
    meaning: ast.expr | None = None
    """The expression that a local name stands for."""
    is_local: bool = False
    """True if the definition declares it, so that it is not a parameter."""
    shape: Shape | None = None
    """The fields of the records that it may stand for."""


@dataclass(frozen=True)
class Scope:
    """Variables by their source names, and the definition they belong to."""

    captured: Captured
    variables: Mapping[str, Variable] = field(default_factory=dict)
    patterns: Mapping[str, object] = field(default_factory=dict)
    """The patterns that its pattern parameters stand for."""

    def with_variable(self, name: str, variable: Variable) -> Scope:
        """Return the scope with one more variable, or with another meaning of that name."""
        return replace(self, variables={**self.variables, name: variable})

    def without(self, names: Container[str]) -> Scope:
        """Return the scope without the variables of these core names."""
        left = {name: v for name, v in self.variables.items() if v.core not in names}
        return replace(self, variables=left)

    @property
    def locals(self) -> list[Variable]:
        """Return the variables that the definition declares, in order."""
        return [variable for variable in self.variables.values() if variable.is_local]

    def variable(self, node: ast.AST) -> Variable | None:
        """Return the variable that a node names; None for other expressions."""
        return self.variables.get(node.id) if isinstance(node, ast.Name) else None

    def resolve(self, node: ast.expr) -> object:
        """Return the value of a dotted name of Python's; None for other expressions.

        Raises PatternError if there is no such name or attribute.
        """
        match node:
            case ast.Name(id=name) if name in self.patterns:
                return self.patterns[name]
            case ast.Name(id=name):
                try:
                    return self.captured.resolve(name)
                except NameError:
                    near = self.captured.did_you_mean(name, self.variables)
                    raise self.error(
                        f"unknown name `{name}`",
                        node,
                        "not a parameter, a local, a `var()` or a name of Python's",
                        near or "use `_` for anything",
                        "patterns are read when first used; `pypm check FILE` reads a whole file",
                    ) from None
            case ast.Attribute(value=value, attr=attribute) if self.is_python(value):
                owner = self.resolve(value)
                try:
                    return getattr(owner, attribute)
                except AttributeError as problem:
                    owner_name = ast.unparse(value)
                    raise self.error(
                        f"`{owner_name}` has no `{attribute}`",
                        node,
                        "unknown",
                        _suggestion(owner, owner_name, attribute, problem),
                    ) from None
        return None

    def is_python(self, node: ast.expr) -> bool:
        """Return whether a dotted name starts at a name of Python's, not at a variable."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id not in self.variables and node.id != "_"

    def is_constant(self, node: ast.expr) -> bool:
        """Return whether an expression mentions no variable, operator, pattern or `record`."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and (part.id in self.variables or part.id == "_"):
                return False
            if isinstance(part, ast.Constant) and part.value is Ellipsis:
                return False
            if isinstance(part, ast.Call) and self.is_python(part.func):
                called = self.resolve(part.func)
                is_form = isinstance(called, Operator) or getattr(called, "is_pattern_form", False)
                if is_form or called is record:
                    return False
        return True

    def constant(self, node: ast.expr) -> Value:
        """Return the value of a Python expression, evaluated once; lists become tuples.

        Raises PatternError if the evaluation raises an error.
        """
        return frozen(self.evaluated(node))

    def argument(self, node: ast.expr) -> Value:
        """Return the constant that an argument of an operator is compared with.

        Raises PatternError if no argument can equal it.
        """
        value = self.constant(node)
        if not (is_comparable(value) and not isinstance(value, frozenset)):
            raise self.incomparable(value, node)
        return value

    def incomparable(self, value: Value, node: ast.expr) -> PatternError:
        """Return the error for a constant that no value of a graph can equal."""
        if isinstance(value, Record):
            return self.error(
                f"`{ast.unparse(node)}` is a record that Python made",
                node,
                "patterns make their own",
                "write it in place: `record(...)`, in `let` or in a guard",
            )
        kind = "set" if isinstance(value, frozenset) else type(value).__name__
        return self.error(
            f"`{ast.unparse(node)}` is a {kind}, and no value of a graph equals one",
            node,
            "never equal",
            "constants are numbers, strings, None, dtypes and devices, and tuples and lists of "
            "these; a tensor is a parameter, or `var()`",
        )

    def evaluated(self, node: ast.expr) -> object:
        """Return the value of a Python expression as it is, evaluated once.

        Raises PatternError if the evaluation raises an error.
        """
        known = self.captured.constants
        if node not in known:
            known[node] = self._evaluated(node)
        return known[node]

    def _evaluated(self, node: ast.expr) -> object:
        values = {
            part.id: self.resolve(part)
            for part in ast.walk(node)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
            if not _is_bound_inside(part.id, node)
        }
        code = compile(ast.Expression(node), self.captured.file, "eval")
        try:
            return eval(code, values)  # the user's own source, in the user's own scope
        except PatternError:
            raise
        except Exception as problem:
            raise self.error(
                f"`{ast.unparse(node)}` cannot be evaluated",
                node,
                f"{type(problem).__name__}: {problem}",
                "expressions without pattern names are Python, evaluated once, at definition",
            ) from problem

    def arguments_of(self, node: ast.expr) -> frozenset[str]:
        """Return the operator arguments that guards can read of a value that matches `node`."""
        match node:
            case ast.BinOp(op=ast.BitOr(), left=left, right=right):
                return self.arguments_of(left) | self.arguments_of(right)
            case ast.Call(func=func) if self.is_python(func):
                called = self.resolve(func)
                if isinstance(called, Operator):
                    return frozenset(map(argument_name, called.canonical.attribute_defaults))
        return frozenset()

    def declares(self, core: str) -> bool:
        """Return whether a core name is that of a variable of this definition."""
        return any(variable.core == core for variable in self.variables.values())

    def mentioned(self, node: ast.expr) -> set[str]:
        """Return the names that an expression mentions, by itself or through local names."""
        found: set[str] = set()
        pending = [node]
        while pending:
            for name in names_in(pending.pop()) - found:
                found.add(name)
                variable = self.variables.get(name)
                if variable is not None and variable.meaning is not None:
                    pending.append(variable.meaning)
        return found

    def span(self, node: Located) -> Span:
        """Return the place of a node of the definition."""
        return self.captured.span(node)

    def error(
        self, message: str, node: Located, label: str = "", help: str = "", *notes: str
    ) -> PatternError:
        """Return an error with a diagnostic at a node of the definition."""
        return self.captured.error(message, node, label, help, *notes)


def is_anything(node: ast.expr) -> bool:
    """Return whether an argument is `...` or `_`."""
    return (isinstance(node, ast.Constant) and node.value is Ellipsis) or (
        isinstance(node, ast.Name) and node.id == "_"
    )


def names_in(node: ast.AST) -> set[str]:
    """Return the names that a piece of source mentions."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _is_bound_inside(name: str, node: ast.expr) -> bool:
    """Return whether a comprehension or lambda inside `node` binds the name itself."""
    return any(
        (isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store) and part.id == name)
        or (isinstance(part, ast.arg) and part.arg == name)
        for part in ast.walk(node)
    )


def _suggestion(owner: object, owner_name: str, attribute: str, problem: AttributeError) -> str:
    if isinstance(owner, Operator):
        return f"`{owner_name}` stands for all of its overloads: write `{owner_name}(...)`"
    close = get_close_matches(attribute, dir(owner), n=1)
    return f"did you mean `{owner_name}.{close[0]}`?" if close else str(problem)
