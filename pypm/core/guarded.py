"""Termination of recursive patterns: the check `guarded` (calculus section 6)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from pypm.core.guards import Reference
from pypm.core.patterns import (
    Alt,
    Call,
    Constrained,
    Context,
    Definition,
    Exists,
    Fun,
    Guarded,
    Let,
    Mu,
    Op,
    Pattern,
    Var,
    args,
    shown,
)
from pypm.diagnostics import Diagnostic

if TYPE_CHECKING:
    from pypm.diagnostics import Span

__all__ = ["NO_SIZES", "Mode", "Sizes", "check_guarded", "is_guarded", "sizes"]


class Mode(Enum):
    """The size of a term, compared with the subject at which an activation began."""

    STRICT = "smaller"
    WEAK = "no larger"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Sizes:
    """G = (S, W): names bound to terms below the subject, and to terms no larger."""

    strict: frozenset[str] = frozenset()
    weak: frozenset[str] = frozenset()

    def mode(self, name: str) -> Mode:
        """Return mode_G(x)."""
        if name in self.strict:
            return Mode.STRICT
        return Mode.WEAK if name in self.weak else Mode.UNKNOWN

    def add(self, names: frozenset[str], mode: Mode) -> Sizes:
        match mode:
            case Mode.STRICT:
                return Sizes(self.strict | names, self.weak)
            case Mode.WEAK:
                return Sizes(self.strict, self.weak | names)
            case Mode.UNKNOWN:
                return self
            case _:
                assert_never(mode)

    def without(self, name: str) -> Sizes:
        return Sizes(self.strict - {name}, self.weak - {name})

    def either(self, other: Sizes) -> Sizes:
        """Return the sizes known after either of two alternates."""
        weak = (self.strict | self.weak) & (other.strict | other.weak)
        return Sizes(self.strict & other.strict, weak)

    @property
    def names(self) -> frozenset[str]:
        return self.strict | self.weak


NO_SIZES: Final = Sizes()

Modes: TypeAlias = tuple[Mode, ...]


def under(mode: Mode) -> Mode:
    """Return the mode of a child of a term of this mode."""
    return Mode.UNKNOWN if mode is Mode.UNKNOWN else Mode.STRICT


def below(modes: Modes) -> Modes:
    return tuple(map(under, modes))


def shift(mode: Mode, entry: Modes) -> Modes:
    """Return the modes of a term, relative to the outer activations, given its innermost mode."""
    match mode:
        case Mode.STRICT:
            return below(entry)
        case Mode.WEAK:
            return entry
        case Mode.UNKNOWN:
            return (Mode.UNKNOWN,) * len(entry)
        case _:
            assert_never(mode)


def sizes(mode: Mode, known: Sizes, pattern: Pattern, context: Context = ()) -> Sizes:
    """Return sm(m, G, p) of section 6: the sizes known after a match, given those before it."""
    match pattern:
        case Var(name):
            return known.add(frozenset({name}), mode)
        case Op(_, parts) | Fun(_, parts):
            for part in parts:
                known = sizes(under(mode), known, part, context)
            return known
        case Alt(left, right):
            one = sizes(mode, known, left, context)
            return one.either(sizes(mode, known, right, context))
        case Exists(name, body):
            return sizes(mode, known.without(name), body, context).without(name)
        case Guarded(body):
            return sizes(mode, known, body, context)
        case Let(body):
            return _after_let(pattern, sizes(mode, known, body, context))
        case Constrained(body, constraint, name):
            known = sizes(mode, known, body, context)
            return sizes(known.mode(name), known, constraint, context)
        case Mu(definition, actuals):
            return _after_call(definition, actuals, mode, known)
        case Call(index, actuals):
            if index >= len(context):
                return known
            return _after_call(context[index], actuals, mode, known)
        case _:
            assert_never(pattern)


def _after_let(let: Let, known: Sizes) -> Sizes:
    if isinstance(let.expression, Reference):
        return known.add(frozenset({let.name}), known.mode(let.expression.name))
    return known


def _after_call(
    definition: Definition, actuals: tuple[str, ...], mode: Mode, known: Sizes
) -> Sizes:
    return known.add(args(definition, actuals, definition.bounded), mode)


@dataclass(frozen=True, slots=True)
class _At:
    """The position of the check: the modes of the present term, R, and the nearest span outside.

    `outer` (M) are the modes relative to the activations of the outer recursive patterns, and
    `entry` (E) the same list as it was when the innermost activation began.
    """

    mode: Mode
    outer: Modes
    entry: Modes
    context: Context
    span: Span | None

    def under(self, span: Span | None) -> _At:
        return _At(under(self.mode), below(self.outer), self.entry, self.context, span)


def check_guarded(pattern: Pattern) -> list[Diagnostic]:
    """Return diagnostics for each recursion that may not terminate (guarded(p) of section 6).

    Each root of a pattern with several is checked by itself.
    """
    found: list[Diagnostic] = []
    _gd(pattern, NO_SIZES, _At(Mode.WEAK, (), (), (), None), found)
    return found


def is_guarded(pattern: Pattern) -> bool:
    """Return whether the search for the pattern ends on every term (theorem T4)."""
    return not check_guarded(pattern)


def _gd(pattern: Pattern, known: Sizes, at: _At, found: list[Diagnostic]) -> Sizes:
    """Check gd(m, M, E, G, p) of section 6 in one traversal, and return sm(m, G, p)."""
    match pattern:
        case Var():
            return sizes(at.mode, known, pattern)
        case Op(_, parts, _, span) | Fun(_, parts, _, span):
            inside = at.under(span or at.span)
            for part in parts:
                known = _gd(part, known, inside, found)
            return known
        case Alt(left, right):
            return _gd(left, known, at, found).either(_gd(right, known, at, found))
        case Exists(name, body):
            return _gd(body, known.without(name), at, found).without(name)
        case Guarded(body):
            return _gd(body, known, at, found)
        case Let(body):
            return _after_let(pattern, _gd(body, known, at, found))
        case Constrained(body, constraint, name, span):
            known = _gd(body, known, at, found)
            mode = known.mode(name)
            span = span or at.span
            there = _At(mode, shift(mode, at.entry), at.entry, at.context, span)
            return _gd(constraint, known, there, found)
        case Mu(definition, actuals) if definition.closed is not None:
            return _after_call(definition, actuals, at.mode, known)
        case Mu(definition, actuals, span):
            span = definition.span or span or at.span
            modes = (at.mode, *at.outer)
            context = (definition, *at.context)
            inside = _At(Mode.WEAK, modes, modes, context, span)
            after = _gd(definition.body, NO_SIZES, inside, found)
            found += [
                _not_bounded(definition, name, span)
                for name in sorted(definition.bounded - after.names)
            ]
            return _after_call(definition, actuals, at.mode, known)
        case Call(index, _, span):
            modes = (at.mode, *at.outer)
            if index >= len(modes) or modes[index] is not Mode.STRICT:
                found.append(_not_below(at.context, index, span or at.span))
            return sizes(at.mode, known, pattern, at.context)
        case _:
            assert_never(pattern)


def _not_below(context: Context, index: int, span: Span | None) -> Diagnostic:
    if index >= len(context):
        return Diagnostic(
            "a call of a recursive pattern that does not enclose it",
            span,
            label=f"only {len(context)} recursive patterns enclose this call",
            help="call an enclosing recursive pattern: index 0 is the innermost",
        )
    name = shown(context[index].name)
    return Diagnostic(
        f"recursion through `{name}` is not guarded: the call is not strictly below the term "
        f"`{name}` was entered at",
        span,
        label=f"this may enter `{name}` again on a term that is not smaller: the search "
        "might never end",
        help=f"call `{name}` inside an operator, as in `f({name}(...))`, or on a variable that is "
        "bound to a child",
    )


def _not_bounded(definition: Definition, parameter: str, span: Span | None) -> Diagnostic:
    name = shown(definition.name)
    return Diagnostic(
        f"`{name}` may leave its parameter `{shown(parameter)}` bound to a larger term",
        span,
        label=f"`{name}` is declared to bind `{shown(parameter)}` to a term no larger than the "
        "one it matches",
        help=f"bind `{shown(parameter)}` to that term or a part of it in every alternate, or take "
        "it off the list of bounded parameters",
    )
