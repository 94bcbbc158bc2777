"""One alternate of a pattern: the statements of one definition, along one path through its `if`s.

The returned expression becomes the pattern; a local name stands for its pattern at its first use
and for the same value afterwards; constraints, guards and lets follow in the order written.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from inspect import Parameter as PythonParameter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pypm.core.guards import Constant
from pypm.core.patterns import Constrained, Exists, Guarded, Let, Pattern, Var
from pypm.core.wellformed import bound_after_all, is_wellformed
from pypm.lang.guard_expressions import asserted, expression
from pypm.lang.overloads import is_anything
from pypm.lang.pattern_expressions import SubPatterns
from pypm.lang.pattern_function import Marker, PatternFunction
from pypm.lang.scope import Scope, Variable, names_in
from pypm.lang.tags import check_tag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pypm.lang.capture import Captured
    from pypm.lang.elaborate import Elaborator, Frames

__all__ = ["Alternate"]


class Alternate:
    """Elaborates one alternate where its parameters stand for the names `actuals`."""

    def __init__(
        self,
        elaborator: Elaborator,
        form: PatternFunction,
        captured: Captured,
        actuals: tuple[str, ...],
        frames: Frames,
        statements: list[ast.stmt] | None = None,
    ) -> None:
        self._elaborator = elaborator
        self._form = form
        self._captured = captured
        self._statements = captured.tree.body if statements is None else statements
        _check_parameters(form, captured)
        pairs = zip(form.parameters, actuals, strict=True)
        operators = form.operator_parameters
        variables = {name: Variable(core, name in operators) for name, core in pairs}
        self._scope = Scope(captured, variables)
        self._declared: list[Variable] = []
        self._sub = SubPatterns(elaborator, form, self._scope, frames, self._statements)

    def pattern(self) -> Pattern:
        """The alternate as one pattern, its locals declared."""
        returned = self._read()
        if isinstance(returned, ast.Tuple):
            raise self._scope.error(
                f"pattern `{self._form.name}` returns several outputs here",
                returned,
                "a tuple",
                "a pattern with several outputs is one definition, and no pattern calls it",
            )
        (result,) = self._conditioned([self._sub.pattern(returned)])
        for variable in reversed(self._declared):
            if variable.is_undeclared:
                result = Exists(variable.core, result)
        return result

    def outputs(self, present: tuple[int, ...] | None = None) -> tuple[Pattern, ...]:
        """The roots of an alternate that returns a tuple; its locals stay free, to be shared.

        With `present`, of these outputs only; locals that none of them mentions then mean nothing.
        """
        returned = self._read()
        assert isinstance(returned, ast.Tuple)
        wanted = range(len(returned.elts)) if present is None else present
        roots = [self._sub.pattern(returned.elts[output]) for output in wanted]
        if present is not None:
            self._scope.forget_undescribed()
        return self._conditioned(roots)

    def output_sources(self) -> list[str | None]:
        """For each output that is an item of a local (`a, b = f(x)`), the local; else None."""
        returned = self._read()
        assert isinstance(returned, ast.Tuple)
        sources: list[str | None] = []
        for output in returned.elts:
            variable = self._scope.variable(output)
            meant = output if variable is None else variable.meaning
            item_of = meant.value if isinstance(meant, ast.Subscript) else None
            sources.append(item_of.id if isinstance(item_of, ast.Name) else None)
        return sources

    def _read(self) -> ast.expr:
        """Declare the names of all statements; gives the returned expression."""
        returned: ast.expr | None = None
        for statement in self._statements:
            if returned is not None:
                raise self._scope.error(
                    "nothing after `return` is read", statement, "never reached", "remove it"
                )
            match statement:
                case ast.Return(value=value) if value is not None:
                    returned = value
                case ast.Return():
                    break
                case ast.Assign(targets=[target], value=value):
                    self._assign(target, value)
                case ast.Expr(value=ast.Call(func=func) as call) if self._is(func, "let"):
                    self._declare_lets(call)
                case ast.Expr(value=ast.Compare(left=ast.Name(), ops=[ast.LtE()])) | ast.Assert():
                    pass
                case ast.Expr(value=ast.Constant(value=str())):
                    pass
                case _:
                    raise self._unknown(statement)
        if returned is None:
            raise self._scope.error(
                f"pattern `{self._form.name}` returns nothing",
                self._statements[-1],
                "ends here",
                "end it with `return` and the pattern to match",
            )
        return returned

    def _unknown(self, statement: ast.stmt) -> Exception:
        if isinstance(statement, ast.Expr) and statement is self._statements[-1]:
            return self._scope.error(
                f"pattern `{self._form.name}` returns nothing",
                statement,
                "not returned",
                f"write `return {ast.unparse(statement)}`",
            )
        word = type(statement).__name__.lower()
        return self._scope.error(
            f"patterns have no {_WORDS.get(type(statement), f'`{word}`')}",
            statement,
            "not a statement of patterns",
            _HELP.get(
                type(statement),
                "patterns consist of assignments, `assert`, `let(...)`, `y <= P(x)`, `if` and "
                "`return`",
            ),
        )

    def _is(self, node: ast.expr, word: str) -> bool:
        if not (isinstance(node, ast.Name | ast.Attribute) and self._scope.is_python(node)):
            return False
        found = self._scope.resolve(node)
        return isinstance(found, Marker) and found.name == word

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case ast.Name(id=name), ast.Call(func=func) as call if self._is(func, "var"):
                if call.args or call.keywords:
                    help = f"write `{name} = var()`; what it is to match follows as `{name} <= ...`"
                    raise self._scope.error("`var` takes nothing", call, "not understood", help)
                self._declare(name, target)
            case ast.Name(id=name), ast.Call(func=func) if self._is(func, "op_var"):
                self._declare(name, target, is_operator=True, tag=self._tag(value))
            case ast.Name(id=name), _:
                self._declare(name, target, pattern=value)
            case ast.Tuple(elts=names), ast.Tuple(elts=values) if len(names) == len(values):
                for one, its_value in zip(names, values, strict=True):
                    self._assign(one, its_value)
            case ast.Tuple(elts=names), _:
                self._unpack(names, value)
            case _:
                raise self._scope.error(
                    f"`{ast.unparse(target)}` cannot be assigned to",
                    target,
                    "not a name",
                    "locals of patterns are names, or tuples of names",
                )

    def _unpack(self, names: list[ast.expr], value: ast.expr) -> None:
        """`a, b = f(x)`: the outputs of one operator."""
        whole = ast.copy_location(ast.Name(self._elaborator.fresh("tuple"), ast.Load()), value)
        self._declare(whole.id, value, pattern=value)
        for index, name in enumerate(names):
            if is_anything(name):
                continue
            item = ast.Subscript(whole, ast.Constant(index), ast.Load())
            self._assign(name, ast.fix_missing_locations(ast.copy_location(item, name)))

    def _tag(self, call: ast.expr) -> str | None:
        assert isinstance(call, ast.Call)
        tags = [k.value for k in call.keywords if k.arg == "tag"]
        if call.args or len(tags) != len(call.keywords):
            raise self._scope.error(
                "`op_var` takes only `tag=`", call, "not understood", 'write `op_var(tag="...")`'
            )
        tag = self._scope.constant(tags[0]) if tags else None
        if tag is not None:
            check_tag(tag, tags[0], self._captured)
        return tag

    def _declare(self, name: str, node: ast.AST, **properties: Any) -> None:
        if name in self._scope.variables:
            raise self._scope.error(
                f"`{name}` already means something here",
                node,
                "defined before",
                "every name of a pattern is defined once; choose another",
            )
        variable = Variable(self._elaborator.fresh(name), is_undeclared=True, **properties)
        self._scope.variables[name] = variable
        self._declared.append(variable)
        if variable.pattern is not None:
            variable.attributes = self._sub.arguments_of(variable.pattern)

    def _declare_lets(self, call: ast.Call) -> None:
        if call.args or not call.keywords:
            raise self._scope.error(
                "`let` takes named values", call, "gives no name", "write `let(s=...)`"
            )
        for keyword in call.keywords:
            if keyword.arg is not None and keyword.arg not in self._scope.variables:
                self._declare(keyword.arg, keyword)

    def _conditioned(self, roots: list[Pattern]) -> tuple[Pattern, ...]:
        """Put each condition around the first root after which all that it reads is bound."""
        for condition in self._conditions():
            last = len(roots) - 1
            bound = (bound_after_all(roots[: index + 1]) for index in range(last))
            at = next((i for i, names in enumerate(bound) if is_wellformed(condition, names)), last)
            roots[at] = replace(condition, body=roots[at])
        return tuple(roots)

    def _conditions(self) -> Iterator[_Condition]:
        """The constraints, guards, lets and defaults in order, each around nothing yet."""
        for statement in self._statements:
            match statement:
                case ast.Expr(value=ast.Compare(left=ast.Name() as name, comparators=[other])):
                    yield self._constraint(name, other)
                case ast.Assert(test=test):
                    stated = asserted(statement, self._scope)
                    yield Guarded(_NOTHING, stated, self._captured.span(test))
                case ast.Expr(value=ast.Call(keywords=keywords)):
                    yield from map(self._let, keywords)
        self._check_locals()
        for parameter in self._form.parameters:
            if self._form.is_optional(parameter) and not self._says(parameter):
                default = Constant(self._form.defaults[parameter])
                yield Let(_NOTHING, self._scope.variables[parameter].core, default)

    def _constraint(self, name: ast.Name, other: ast.expr) -> Constrained:
        variable = self._scope.variable(name)
        if variable is None:
            raise self._scope.error(
                f"`{name.id}` is not a variable of this pattern",
                name,
                "only a variable can be constrained",
                f"make `{name.id}` a parameter, or declare it: `{name.id} = var()`",
            )
        variable.attributes |= self._sub.arguments_of(other)
        constraint = self._sub.pattern(other)
        return Constrained(_NOTHING, constraint, variable.core, self._captured.span(other))

    def _let(self, keyword: ast.keyword) -> Let:
        if keyword.arg is None:
            raise self._scope.error(
                "`let` takes named values", keyword.value, "not named", "write `let(s=...)`"
            )
        value = expression(keyword.value, self._scope)
        span = self._captured.span(keyword.value)
        return Let(_NOTHING, self._scope.variables[keyword.arg].core, value, span)

    def _check_locals(self) -> None:
        for name, variable in self._scope.variables.items():
            if variable.pattern is not None and variable.described is None:
                raise self._scope.error(
                    f"`{name}` is not part of what pattern `{self._form.name}` returns",
                    variable.pattern,
                    "matched against nothing",
                    "use it in the returned pattern, or remove it",
                )

    def _says(self, parameter: str) -> bool:
        """Whether the statements mention a parameter where it could be bound."""
        for statement in self._statements:
            match statement:
                case ast.Assert():
                    continue
                case ast.Expr(value=ast.Call(keywords=keywords)):
                    if any(keyword.arg == parameter for keyword in keywords):
                        return True
                case _ if parameter in names_in(statement):
                    return True
        return False


_Condition: TypeAlias = Constrained | Guarded | Let
_NOTHING: Final = Var("_")
"""Stands for the pattern that a condition will be put around."""


_WORDS: dict[type[ast.stmt], str] = {
    ast.AnnAssign: "annotations of names",
    ast.Assign: "assignments to several names at once",
    ast.AugAssign: "assignments to a name that has a meaning already",
    ast.ClassDef: "`class`",
    ast.Expr: "expressions as statements, other than `y <= P(x)` and `let(...)`",
    ast.FunctionDef: "`def`",
    ast.If: "`if` around several outputs",
    ast.ImportFrom: "`import`",
}
_HELP: dict[type[ast.stmt], str] = {
    ast.For: "any number of operators is recursion: let the pattern call itself",
    ast.While: "any number of operators is recursion: let the pattern call itself",
    ast.Try: "what may or may not be there is an alternate: define the pattern again, or use `|`",
}


def _check_parameters(form: PatternFunction, captured: Captured) -> None:
    captured.check_plain_parameters("pattern")
    arguments = captured.tree.args
    names = tuple(argument.arg for argument in arguments.args)
    if names != form.parameters:
        first = form.alternates[0]
        raise captured.error(
            f"an alternate of pattern `{form.name}` has other parameters",
            arguments.args[0] if arguments.args else captured.tree,
            f"expected ({', '.join(form.parameters)}), as at {first.header()}",
            "the alternates of a pattern have the same parameters in the same order",
        )
    defaults = form.defaults_of(captured)
    for argument in arguments.args:
        expected = form.defaults[argument.arg]
        if repr(defaults[argument.arg]) != repr(expected):
            said = "no default" if expected is PythonParameter.empty else f"default {expected!r}"
            raise captured.error(
                f"an alternate of pattern `{form.name}` has another default for `{argument.arg}`",
                argument,
                f"expected {said}, as at {form.alternates[0].header()}",
                "a default means the same in every alternate: it is the value of a part not there",
            )
