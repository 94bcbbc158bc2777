"""`@predicate`: users' functions in guards, and the diagnostics of their mistakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, wraps
from inspect import unwrap
from typing import Final, overload

from pypm.core.guards import Function
from pypm.core.records import Record, as_tuple
from pypm.core.terms import UNDEFINED, Unresolved, Value
from pypm.diagnostics import Diagnostic, RewriteError, Span, raised_at

__all__ = ["condition", "predicate"]


@overload
def predicate(function: Callable[..., Value]) -> Function: ...


@overload
def predicate(
    *, limit: float | None = None, nearest: Callable[..., Value] | None = None
) -> Callable[[Callable[..., Value]], Function]: ...


def predicate(
    function: Callable[..., Value] | None = None,
    *,
    limit: float | None = None,
    nearest: Callable[..., Value] | None = None,
) -> Function | Callable[[Callable[..., Value]], Function]:
    """Return a function that guards and expressions can call.

    Arguments:
        function: a pure Python function of attribute values.
        limit: a number for which `prove` takes one that the function holds for, or returns: minus
            infinity for numbers so low that nothing is left beside them. Verdicts say so.
        nearest: for a predicate on numbers, a function that takes tensors of one element for any
            numbers, and returns some for which the predicate holds: the same, if it holds for them.
            `prove` takes these for all numbers that the predicate allows.

    A call has no value, and the guard is unknown, if arithmetic or a lookup fails (ArithmeticError,
    LookupError, ValueError), or if an argument that must be known is a symbolic size (TypeError,
    AttributeError). Any other exception is a mistake in the function. Raises RewriteError for it,
    with its place, when the guard is evaluated, for instance by `rewrite`.
    """
    if function is None:
        return lambda function: replace(predicate(function), limit=limit, nearest=nearest)

    @wraps(function)
    def apply(*arguments: Value) -> Value:
        try:
            return function(*arguments)
        except (ArithmeticError, LookupError, ValueError):
            return UNDEFINED
        except Exception as error:
            is_unknown = isinstance(error, TypeError | AttributeError)
            if is_unknown and any(map(_is_unresolved, arguments)):
                return UNDEFINED
            raised = f"raised {type(error).__name__}: {error}"
            raise RewriteError(_mistake(function, arguments, raised, _HELP, error)) from error

    return Function(f"{function.__module__}.{function.__qualname__}", apply)


def condition(asked: Function) -> Function:
    """Return a predicate that is a guard by itself.

    It raises RewriteError if its result is neither True nor False nor unknown.
    """
    return replace(asked, apply=_checked(asked.apply))


@lru_cache(maxsize=256)
def _checked(asked: Callable[..., Value]) -> Callable[..., Value]:
    """Return the function of a condition, the same one for the same predicate."""

    def apply(*arguments: Value) -> Value:
        found = asked(*arguments)
        if found is UNDEFINED or isinstance(found, bool | Unresolved):
            return found
        gave = f"returned {found!r}, which is neither True nor False"
        help = "return the result of a comparison, or of `bool(...)`"
        raise RewriteError(_mistake(unwrap(asked), arguments, gave, help))

    return apply


def _is_unresolved(value: Value) -> bool:
    if isinstance(value, Record):
        return _is_unresolved(as_tuple(value))
    if isinstance(value, tuple):
        return any(map(_is_unresolved, value))
    return isinstance(value, Unresolved)


_HELP: Final = (
    "where it has no value, let it raise ArithmeticError, LookupError or ValueError: the guard is "
    "then unknown"
)


def _mistake(
    function: Callable[..., Value],
    arguments: Sequence[Value],
    what: str,
    help: str,
    error: Exception | None = None,
) -> Diagnostic:
    return Diagnostic(
        f"predicate `{function.__name__}` {what}",
        _place(unwrap(function), error),
        "raised here" if error else "returns no truth value",
        "" if isinstance(error, NameError) else help,
        (f"called as `{function.__name__}({', '.join(map(str, arguments))})`",),
    )


def _place(function: Callable[..., Value], error: Exception | None) -> Span | None:
    """Return the span at which a function raised an error; without one, that of its first line."""
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    start = code.co_firstlineno
    return (error and raised_at(error, code.co_filename)) or Span(
        code.co_filename, start, 0, start, 1
    )
