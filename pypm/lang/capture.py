"""The source of a decorated function: its syntax tree, spans in it, and the names in its scope."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType, FrameType
from typing import Final, TypeAlias

from pypm.core.records import Record, record
from pypm.core.terms import Value
from pypm.diagnostics import Diagnostic, PatternError, Span, did_you_mean

__all__ = [
    "Captured",
    "Growing",
    "Located",
    "capture",
    "frozen",
    "is_class_body",
    "is_comparable",
]

Located: TypeAlias = ast.expr | ast.stmt | ast.arg | ast.keyword
"""Nodes of syntax trees that have a place in the source."""


class Growing:
    """A value that later definitions may extend, so its name is resolved at each use."""


def frozen(value: object) -> Value:
    """Return a constant as attributes hold it.

    Lists are tuples, sets frozen, slices tuples, devices names, and NumPy's numbers Python's.
    """
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, slice):
        return ("slice", *map(frozen, (value.start, value.stop, value.step)))
    kind = type(value)
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()  # type: ignore[attr-defined]
    return str(value) if (kind.__module__, kind.__qualname__) == ("torch", "device") else value


def is_comparable(value: Value) -> bool:
    """Return whether a constant has a hash and an equality, as tensors and dictionaries do not."""
    if isinstance(value, tuple | frozenset):
        return all(map(is_comparable, value))
    if isinstance(value, Record):  # made in place, so that patterns have one form of it
        return False
    try:
        hash(value)
        return isinstance(value == value, bool)
    except Exception:  # of the value's own methods
        return False


@dataclass(frozen=True, eq=False)
class Captured:
    """A function as written. `namespace` is the class body around it; empty if there is none."""

    function: Callable[..., object]
    tree: ast.FunctionDef
    file: str
    lines: Sequence[str]
    """The lines of the file."""
    namespace: Mapping[str, object]
    defined: Mapping[str, object]
    """The values of names when the definition ran, except those that are `Growing`."""
    constants: dict[ast.expr, object] = field(default_factory=dict)
    """The values of Python's own expressions, each evaluated once."""

    @property
    def name(self) -> str:
        """Return the name of the function."""
        return self.tree.name

    @property
    def source(self) -> str:
        """Return the function as normalized source text, decorators included."""
        return ast.unparse(self.tree)

    @cached_property
    def defaults(self) -> dict[str, Value]:
        """Return the parameters in order, each with its default or `inspect.Parameter.empty`."""
        parameters = inspect.signature(self.function).parameters
        return {name: frozen(parameter.default) for name, parameter in parameters.items()}

    @cached_property
    def parts(self) -> tuple[ast.AST, ...]:
        """Return all nodes of the tree."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def makes_records(self) -> bool:
        """Return whether a call in the body makes a record."""
        calls = (part for part in self.parts if isinstance(part, ast.Call))
        return any(self.value_of(call.func) is record for call in calls)

    @cached_property
    def said(self) -> frozenset[str | None]:
        """Return the names in the body, and the keywords of its calls."""
        parts = [part for statement in self.tree.body for part in ast.walk(statement)]
        names = {part.id for part in parts if isinstance(part, ast.Name)}
        return frozenset(names | {part.arg for part in parts if isinstance(part, ast.keyword)})

    @property
    def returns_tuple(self) -> bool:
        """Return whether the function returns a tuple, that is several outputs."""
        return any(
            isinstance(part, ast.Return) and isinstance(part.value, ast.Tuple)
            for part in self.parts
        )

    def span(self, node: Located) -> Span:
        """Return the place of a node of `tree` in the user's file."""
        line, start = node.lineno, node.col_offset
        last, end = node.end_lineno or line, node.end_col_offset or start + 1
        return Span(self.file, line, self._column(line, start), last, self._column(last, end))

    def _column(self, line: int, offset: int) -> int:
        """Return the column, in characters, of an offset in bytes, as syntax trees have it."""
        return len(self.lines[line - 1].encode()[:offset].decode())

    def header(self) -> Span:
        """Return the span of the function's own name."""
        span = self.span(self.tree)
        start = span.column + len("def ")
        return Span(self.file, span.line, start, span.line, start + len(self.name))

    def resolve(self, name: str) -> object:
        """Return the value of a name in the scope of the function. Raises NameError."""
        if name in self.defined:
            return self.defined[name]
        code: CodeType = self.function.__code__
        if name in code.co_freevars:
            cell = (self.function.__closure__ or ())[code.co_freevars.index(name)]
            try:
                return cell.cell_contents
            except ValueError:
                raise NameError(name) from None
        for scope in (self.namespace, self.function.__globals__, vars(builtins)):
            if name in scope:
                return scope[name]
        raise NameError(name)

    def value_of(self, node: ast.expr) -> object:
        """Return the value of a dotted name outside of the function; None for all else."""
        if isinstance(node, ast.Attribute):
            return getattr(self.value_of(node.value), node.attr, None)
        if not isinstance(node, ast.Name) or node.id in self.function.__code__.co_varnames:
            return None
        try:
            return self.resolve(node.id)
        except NameError:
            return None

    def did_you_mean(self, name: str, among: Iterable[str]) -> str:
        """Return a question for the name in scope, or in `among`, that is most similar; or ""."""
        code = self.function.__code__
        known = {*among, *self.namespace, *self.function.__globals__, *code.co_freevars}
        return did_you_mean(name, known)

    def check_plain_parameters(self, kind: str) -> None:
        """Raise PatternError for parameters that a `kind` ("rule", "pattern") cannot have."""
        arguments = self.tree.args
        special = [arguments.vararg, arguments.kwarg, *arguments.posonlyargs, *arguments.kwonlyargs]
        for argument in special:
            if argument is not None:
                raise self.error(
                    f"{kind} `{self.name}` has a parameter of a kind that {kind}s do not have",
                    argument,
                    "not a plain parameter",
                    f"{kind}s have plain parameters, as in `def {self.name}(x, y)`",
                )

    def error(
        self, message: str, node: Located, label: str = "", help: str = "", *notes: str
    ) -> PatternError:
        """Return an error with a diagnostic at a node of the tree."""
        return PatternError(Diagnostic(message, self.span(node), label, help, notes))


def capture(function: Callable[..., object], frame: FrameType) -> Captured:
    """Return the source of a function.

    `frame` is the one that runs the function's decorator. Raises PatternError if `function` is not
    a plain function, or its source cannot be read.
    """
    name = getattr(function, "__name__", function)
    code: CodeType | None = getattr(function, "__code__", None)
    if code is None or code.co_name == "<lambda>" or code.co_flags & _NOT_PLAIN:
        message, help = f"`{name}` is not a plain function", "write it with `def`"
        raise PatternError(Diagnostic(message, help=help))
    file = code.co_filename
    linecache.checkcache(file)
    lines = linecache.getlines(file, function.__globals__)
    tree = _functions(file, lines).get((code.co_firstlineno, code.co_name))
    if tree is None:
        raise PatternError(
            Diagnostic(
                f"the source of `{name}` cannot be read",
                help="patterns and rules are read from source: define them in a file or a notebook "
                "cell, or build them from the constructors of pypm.core",
            )
        )
    namespace = frame.f_locals if is_class_body(frame) else {}
    defined: dict[str, object] = {}
    captured = Captured(function, tree, file, lines, namespace, defined)
    defined.update(_meanings(captured))
    return captured


_NOT_PLAIN: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_Functions: TypeAlias = dict[tuple[int, str], ast.FunctionDef]
_READ: Final[dict[str, tuple[Sequence[str], _Functions]]] = {}
"""For each file its lines when it was parsed last, and its functions."""


def _functions(file: str, lines: Sequence[str]) -> _Functions:
    """Return the functions of a file by first line, which a decorator may be on, and name.

    A file is parsed once: `linecache` gives the same list until the file has changed.
    """
    known = _READ.get(file)
    if known is None or known[0] is not lines:
        known = _READ[file] = lines, _parsed(lines)
    return known[1]


def _parsed(lines: Sequence[str]) -> _Functions:
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:  # the file is no longer the one that runs
        return {}
    return {
        (f.decorator_list[0].lineno if f.decorator_list else f.lineno, f.name): f
        for f in _statements(tree)
        if isinstance(f, ast.FunctionDef)
    }


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield all statements of a file, and the clauses that they consist of."""
    pending: list[ast.AST] = [*tree.body]
    while pending:
        statement = pending.pop()
        yield statement
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            pending += getattr(statement, block, ())


def _meanings(captured: Captured) -> dict[str, object]:
    """Return the present values of names in a definition, without those that are `Growing`."""
    found: dict[str, object] = {}
    for part in captured.parts:
        if isinstance(part, ast.Name) and part.id not in found:
            with suppress(NameError):
                found[part.id] = captured.resolve(part.id)
    return {name: value for name, value in found.items() if not isinstance(value, Growing)}


def is_class_body(frame: FrameType) -> bool:
    """Return whether a frame runs the body of a class."""
    return not frame.f_code.co_flags & inspect.CO_OPTIMIZED and "__module__" in frame.f_locals
