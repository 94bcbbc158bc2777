"""The first stage of elaboration: the names that definitions declare, the patterns they call."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from inspect import Parameter as PythonParameter
from typing import Final

from pypm.lang.capture import Captured, Located, is_comparable
from pypm.lang.named_pattern import (
    Called,
    Marker,
    Mistake,
    NamedPattern,
    called_by,
    pattern_parameters,
)
from pypm.lang.record_shapes import Shape, Shapes
from pypm.lang.scope import Scope, Variable, is_anything
from pypm.lang.tags import check_tag

__all__ = ["Declaration", "Path", "Reach", "declare", "paths_of", "reach_of"]


# --- patterns that call each other --------------------------------------------------------------


@dataclass(frozen=True)
class Reach:
    """The patterns that can be reached from one, each with those that it calls itself."""

    calls: Mapping[NamedPattern, tuple[NamedPattern, ...]]
    sites: Mapping[NamedPattern, Mapping[ast.Call, Called]]
    """For each pattern what each call of one in it is of."""

    @cached_property
    def shapes(self) -> Shapes:
        """Return the fields of the records that names stand for."""
        return Shapes(self.sites)

    def is_recursive(self, form: NamedPattern) -> bool:
        """Return whether a pattern can come to call itself."""
        return form in self.reached(form)

    def reached(self, form: NamedPattern) -> dict[NamedPattern, None]:
        """Return the patterns that a pattern calls, and those that they call."""
        reached: dict[NamedPattern, None] = {}
        pending = [*self.calls[form]]
        while pending:
            called = pending.pop()
            if called not in reached:
                reached[called] = None
                pending += self.calls[called]
        return reached


def reach_of(form: NamedPattern) -> Reach:
    """Return the patterns that can be reached from one."""
    calls: dict[NamedPattern, tuple[NamedPattern, ...]] = {}
    sites: dict[NamedPattern, dict[ast.Call, Called]] = {}
    pending = [form]
    while pending:
        caller = pending.pop()
        if caller not in calls:
            sites[caller] = dict(_named_patterns(caller))
            named = [called.form for called in sites[caller].values()]
            calls[caller] = (*named, *([caller.through] if caller.through else []))
            pending += calls[caller]
    return Reach(calls, sites)


def _named_patterns(form: NamedPattern) -> Iterator[tuple[ast.Call, Called]]:
    """Yield the calls of patterns by a dotted name, each with what it calls."""
    for captured in form.alternates:
        for part in captured.parts:
            if not isinstance(part, ast.Call):
                continue
            try:
                yield part, called_by(part, partial(_resolved, form, captured))
            except (NameError, AttributeError, Mistake):  # reported where the call is elaborated
                continue


def _resolved(form: NamedPattern, captured: Captured, node: ast.expr) -> object:
    """Return the value of a dotted name. Raises NameError or AttributeError."""
    if isinstance(node, ast.Attribute):
        return getattr(_resolved(form, captured, node.value), node.attr)
    if not isinstance(node, ast.Name):
        return None
    return form.given.get(node.id) or captured.resolve(node.id)


# --- one definition -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Path:
    """A definition along one path through its `if`s."""

    captured: Captured
    statements: list[ast.stmt]


@dataclass(frozen=True, slots=True)
class Declaration:
    """A definition with all its names declared, and the expression that it returns."""

    form: NamedPattern
    statements: list[ast.stmt]
    scope: Scope
    returned: ast.expr


def paths_of(form: NamedPattern) -> list[Path]:
    """Return the definitions of a pattern in order, each along all paths through its `if`s."""
    return [
        Path(captured, statements)
        for captured in form.alternates
        for statements in _paths(captured.tree.body)
    ]


def declare(
    form: NamedPattern,
    path: Path,
    actuals: tuple[str, ...],
    fresh: Callable[[str], str],
    shapes: Shapes,
) -> Declaration:
    """Declare the names of a definition whose parameters stand for the core names `actuals`.

    `fresh` returns a new core name for each local. Raises PatternError.
    """
    _check_parameters(form, path.captured)
    operators = form.operator_parameters
    shape_of = partial(shapes.of, form, path.captured)
    variables = {
        name: Variable(core, name in operators, shape=shape_of(name))
        for name, core in zip(form.parameters, actuals, strict=True)
    }
    scope = Scope(path.captured, variables, form.given)
    reader = _StatementReader(form, path.statements, scope, fresh, shape_of)
    returned = reader.read()
    return Declaration(form, path.statements, reader.scope, returned)


def _paths(statements: list[ast.stmt]) -> list[list[ast.stmt]]:
    """Return the paths through a body with `if`s, each as a list of statements without any.

    `if g: A` followed by `B` has two: `assert g`, A, and then B unless A returns; and
    `assert not g`, B.
    """
    for index, statement in enumerate(statements):
        if isinstance(statement, ast.If):
            before, rest = statements[:index], statements[index + 1 :]
            taken: ast.stmt = ast.Assert(statement.test)
            refused: ast.stmt = ast.Assert(ast.UnaryOp(ast.Not(), statement.test))
            branches = []
            for test, block in ((taken, statement.body), (refused, statement.orelse)):
                located = ast.fix_missing_locations(ast.copy_location(test, statement.test))
                ends = bool(block) and isinstance(block[-1], ast.Return)
                line = [*before, located, *block, *([] if ends else rest)]
                branches += _paths(line)
            return branches
    return [statements]


class _StatementReader:
    """A reader of statements; `scope` has the names that were declared so far."""

    def __init__(
        self,
        form: NamedPattern,
        statements: list[ast.stmt],
        scope: Scope,
        fresh: Callable[[str], str],
        shape_of: Callable[[str], Shape | None],
    ) -> None:
        self._form = form
        self._statements = statements
        self._fresh = fresh
        self._shape_of = shape_of
        self.scope = scope

    def read(self) -> ast.expr:
        """Declare the names of all statements, and return the returned expression."""
        returned: ast.expr | None = None
        for statement in self._statements:
            if returned is not None:
                raise self.scope.error(
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
            raise self.scope.error(
                f"pattern `{self._form.name}` returns nothing",
                self._statements[-1],
                "ends here",
                "end it with `return` and the pattern to match",
            )
        return returned

    def _unknown(self, statement: ast.stmt) -> Exception:
        if isinstance(statement, ast.Expr) and statement is self._statements[-1]:
            return self.scope.error(
                f"pattern `{self._form.name}` returns nothing",
                statement,
                "not returned",
                f"write `return {ast.unparse(statement)}`",
            )
        word = type(statement).__name__.lower()
        return self.scope.error(
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
        if not (isinstance(node, ast.Name | ast.Attribute) and self.scope.is_python(node)):
            return False
        found = self.scope.resolve(node)
        return isinstance(found, Marker) and found.name == word

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        """Declare the names on the left side of an assignment. Raises PatternError."""
        match target, value:
            case ast.Name(id=name), ast.Call(func=func) as call if self._is(func, "var"):
                if call.args or call.keywords:
                    help = f"write `{name} = var()`; what it is to match follows as `{name} <= ...`"
                    raise self.scope.error("`var` takes nothing", call, "not understood", help)
                self._declare(name, target)
            case ast.Name(id=name), ast.Call(func=func) if self._is(func, "op_var"):
                self._declare(name, target, is_operator=True, tag=self._tag(value))
            case ast.Name(id=name), _:
                self._declare_meaning(name, target, value)
            case ast.Tuple(elts=names), ast.Tuple(elts=values) if len(names) == len(values):
                for one, its_value in zip(names, values, strict=True):
                    self._assign(one, its_value)
            case ast.Tuple(elts=names), _:
                self._unpack(names, value)
            case _:
                raise self.scope.error(
                    f"`{ast.unparse(target)}` cannot be assigned to",
                    target,
                    "not a name",
                    "locals of patterns are names, or tuples of names",
                )

    def _unpack(self, names: list[ast.expr], value: ast.expr) -> None:
        """Declare the names of `a, b = f(x)`, the outputs of one operator."""
        whole = ast.copy_location(ast.Name(self._fresh("tuple"), ast.Load()), value)
        self._declare_meaning(whole.id, value, value)
        for index, name in enumerate(names):
            if is_anything(name):
                continue
            item = ast.Subscript(whole, ast.Constant(index), ast.Load())
            self._assign(name, ast.fix_missing_locations(ast.copy_location(item, name)))

    def _tag(self, call: ast.expr) -> str | None:
        assert isinstance(call, ast.Call)
        tags = [k.value for k in call.keywords if k.arg == "tag"]
        if call.args or len(tags) != len(call.keywords):
            raise self.scope.error(
                "`op_var` takes only `tag=`", call, "not understood", 'write `op_var(tag="...")`'
            )
        tag = self.scope.constant(tags[0]) if tags else None
        return None if tag is None else check_tag(tag, tags[0], self.scope.captured)

    def _declare(
        self,
        name: str,
        node: Located,
        *,
        is_operator: bool = False,
        tag: str | None = None,
        meaning: ast.expr | None = None,
    ) -> None:
        if name in self.scope.variables:
            raise self.scope.error(
                f"`{name}` already means something here",
                node,
                "defined before",
                "every name of a pattern is defined once; choose another",
            )
        core = self._fresh(name)
        shape = self._shape_of(name)
        variable = Variable(core, is_operator, tag=tag, meaning=meaning, is_local=True, shape=shape)
        self.scope = self.scope.with_variable(name, variable)

    def _declare_meaning(self, name: str, node: Located, value: ast.expr) -> None:
        self._declare(name, node, meaning=value)
        # its arguments are looked up once the name is known, since it may mention itself
        variable = self.scope.variables[name]
        known = replace(variable, attributes=self.scope.arguments_of(value))
        self.scope = self.scope.with_variable(name, known)

    def _declare_lets(self, call: ast.Call) -> None:
        if call.args or not call.keywords:
            raise self.scope.error(
                "`let` takes named values", call, "gives no name", "write `let(s=...)`"
            )
        for keyword in call.keywords:
            if keyword.arg is not None and keyword.arg not in self.scope.variables:
                self._declare(keyword.arg, keyword)


_WORDS: Final[dict[type[ast.stmt], str]] = {
    ast.AnnAssign: "annotations of names",
    ast.Assign: "assignments to several names at once",
    ast.AugAssign: "assignments to a name that has a meaning already",
    ast.ClassDef: "`class`",
    ast.Expr: "expressions as statements, other than `y <= P(x)` and `let(...)`",
    ast.FunctionDef: "`def`",
    ast.If: "`if` around several outputs",
    ast.ImportFrom: "`import`",
}
_HELP: Final[dict[type[ast.stmt], str]] = {
    ast.For: "any number of operators is recursion: let the pattern call itself",
    ast.While: "any number of operators is recursion: let the pattern call itself",
    ast.Try: "what may or may not be there is an alternate: define the pattern again, or use `|`",
}


def _check_parameters(form: NamedPattern, captured: Captured) -> None:
    """Raise PatternError if an alternate has other parameters or defaults than the first one."""
    captured.check_plain_parameters("pattern")
    arguments = captured.tree.args
    names = tuple(argument.arg for argument in arguments.args)
    first = form.alternates[0]
    if names != tuple(first.defaults):
        raise captured.error(
            f"an alternate of pattern `{form.name}` has other parameters",
            arguments.args[0] if arguments.args else captured.tree,
            f"expected ({', '.join(first.defaults)}), as at {first.header()}",
            "the alternates of a pattern have the same parameters in the same order",
        )
    defaults = captured.defaults
    for argument, default in zip(arguments.args[::-1], arguments.defaults[::-1], strict=False):
        if not is_comparable(defaults[argument.arg]):
            raise Scope(captured).incomparable(defaults[argument.arg], default)
    patterns = {*pattern_parameters(captured)} ^ {*form.pattern_parameters}
    for argument in arguments.args:
        if argument.arg in patterns:
            is_pattern = argument.arg in form.pattern_parameters
            raise captured.error(
                f"an alternate of pattern `{form.name}` takes another `{argument.arg}`",
                argument,
                f"expected {'a pattern' if is_pattern else 'a value'}, as at {first.header()}",
                "the alternates of a pattern annotate the same parameters as patterns",
            )
        expected = first.defaults[argument.arg]
        if repr(defaults[argument.arg]) != repr(expected):
            said = "no default" if expected is PythonParameter.empty else f"default {expected!r}"
            raise captured.error(
                f"an alternate of pattern `{form.name}` has another default for `{argument.arg}`",
                argument,
                f"expected {said}, as at {form.alternates[0].header()}",
                "a default means the same in every alternate: it is the value of a part not there",
            )
