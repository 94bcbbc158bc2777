"""The source of a decorated function: its syntax tree, the places in it, and the names it sees."""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from types import CodeType, FrameType
from typing import Any

from pypm.diagnostics import Diagnostic, PatternError, Span
from pypm.lang.forms import PatternFunction

__all__ = ["Captured", "capture", "is_class_body"]


@dataclass(frozen=True, eq=False)
class Captured:
    """A function as written. `namespace` is the class body it stands in, if it stands in one."""

    function: Callable[..., Any]
    tree: ast.FunctionDef
    file: str
    lines: tuple[str, ...]
    """The source that `tree` was parsed from, line by line."""
    first_line: int
    namespace: Mapping[str, Any]
    defined: Mapping[str, Any]
    """What names meant when the definition ran; patterns, which may grow, are left out."""
    constants: dict[ast.expr, Any] = field(default_factory=dict)
    """The values of Python's own expressions, each evaluated once."""

    @property
    def name(self) -> str:
        return self.tree.name

    @property
    def source(self) -> str:
        return ast.unparse(self.tree)

    @property
    def returns_tuple(self) -> bool:
        """Whether it describes several outputs."""
        return any(
            isinstance(part, ast.Return) and isinstance(part.value, ast.Tuple)
            for part in ast.walk(self.tree)
        )

    def span(self, node: ast.AST) -> Span:
        """The place of a node of `tree` in the user's file."""
        position: Any = node
        line = position.lineno
        last = getattr(node, "end_lineno", None) or line
        end = getattr(node, "end_col_offset", None) or position.col_offset + 1
        return Span(
            self.file,
            self.first_line + line - 1,
            self._column(line, position.col_offset),
            self.first_line + last - 1,
            self._column(last, end),
        )

    def _column(self, line: int, offset: int) -> int:
        """The column of a place in the tree, whose own offsets count bytes."""
        return len(self.lines[line - 1].encode()[:offset].decode())

    def header(self) -> Span:
        """The place of the function's own name."""
        span = self.span(self.tree)
        start = span.column + len("def ")
        return Span(self.file, span.line, start, span.line, start + len(self.name))

    def resolve(self, name: str) -> Any:
        """What a name means where the function stands; raises NameError."""
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

    def close_names(self, name: str, among: tuple[str, ...]) -> list[str]:
        """Names in reach that look like `name`."""
        code = self.function.__code__
        known = {*among, *self.namespace, *self.function.__globals__, *code.co_freevars}
        return get_close_matches(name, known, n=1)

    def check_plain_parameters(self, kind: str) -> None:
        """Raise PatternError for parameters that the definition of a `kind` cannot have."""
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

    def error(self, message: str, node: ast.AST, label: str = "", help: str = "") -> PatternError:
        """A diagnostic at a node of the tree."""
        return PatternError(Diagnostic(message, self.span(node), label, help))


def capture(function: Callable[..., Any], frame: FrameType) -> Captured:
    """Read a function's source; `frame` runs its decorator."""
    try:
        lines, first_line = inspect.getsourcelines(function)
    except (OSError, TypeError):
        raise PatternError(
            Diagnostic(
                f"the source of `{function.__name__}` cannot be read",
                help="patterns and rules are read from source: define them in a file or a notebook "
                "cell, or build them from the constructors of pypm.core",
            )
        ) from None
    # An indented definition is parsed inside a block of its own, so that columns stay true.
    indented = lines[0][:1].isspace()
    lines = ["if True:\n", *lines] if indented else lines
    statement: Any = ast.parse("".join(lines)).body[0]
    tree = statement.body[0] if indented else statement
    if not isinstance(tree, ast.FunctionDef):
        raise PatternError(
            Diagnostic(
                f"`{getattr(function, '__name__', function)}` is not a plain function",
                help="write it with `def`",
            )
        )
    file = inspect.getsourcefile(function) or function.__code__.co_filename
    namespace = frame.f_locals if is_class_body(frame) else {}
    first_line -= int(indented)
    captured = Captured(function, tree, file, tuple(lines), first_line, namespace, {})
    return replace(captured, defined=_meanings(captured))


def _meanings(captured: Captured) -> dict[str, Any]:
    """What the names of a definition mean now, as far as they mean anything yet."""
    found: dict[str, Any] = {}
    for part in ast.walk(captured.tree):
        if isinstance(part, ast.Name) and part.id not in found:
            with suppress(NameError):
                found[part.id] = captured.resolve(part.id)
    return {name: value for name, value in found.items() if not isinstance(value, PatternFunction)}


def is_class_body(frame: FrameType) -> bool:
    """Whether a frame runs the body of a class."""
    return not frame.f_code.co_flags & inspect.CO_OPTIMIZED and "__module__" in frame.f_locals
