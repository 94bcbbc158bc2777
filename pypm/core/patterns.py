"""The patterns of CorePyPM: ten forms, a closed union (calculus section 2)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pypm.core.guards import Expression, Guard
    from pypm.core.operators import Operator
    from pypm.diagnostics import Span

__all__ = [
    "Alt",
    "Call",
    "Closed",
    "Constrained",
    "Context",
    "Definition",
    "Exists",
    "Fun",
    "Guarded",
    "Let",
    "Mu",
    "Op",
    "Pattern",
    "Var",
    "alternation",
    "arg",
    "args",
    "shown",
]

_Asked = TypeVar("_Asked")
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Var:
    """`x`: any value, and the same one at each occurrence of x."""

    name: str
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Op:
    """`f(p, ...)`: an operator with exactly these children.

    `keep` marks a value that may stay alive for users outside the match; matching ignores it.
    """

    operator: Operator
    arguments: tuple[Pattern, ...]
    keep: bool = False
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Fun:
    """`F(p, ...)`: any operator with that many children; F is bound to it."""

    name: str
    arguments: tuple[Pattern, ...]
    keep: bool = False
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Alt:
    """`p | q`: first p, then q."""

    left: Pattern
    right: Pattern


@dataclass(frozen=True, slots=True)
class Exists:
    """`exists x. p`: p, for some value of x (a term, an operator, a constant) that p binds."""

    name: str
    body: Pattern


@dataclass(frozen=True, slots=True)
class Guarded:
    """`p; guard(g)`: p, if g holds afterwards."""

    body: Pattern
    guard: Guard
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Let:
    """`p; let(x = e)`: p, if x has the value of e afterwards."""

    body: Pattern
    name: str
    expression: Expression
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Constrained:
    """`p; (q <= x)`: p, if the term bound to x then matches q."""

    body: Pattern
    pattern: Pattern
    name: str
    span: Span | None = field(default=None, compare=False, repr=False)


class Closed:
    """A mark of definitions without calls to outside, whose lists are inferred and checked.

    Passes need not traverse the body again: the mark memoizes their results.
    """

    def __init__(self) -> None:
        self._found: dict[object, Any] = {}

    def once(self, find: Callable[[_Asked], _Found], asked: _Asked) -> _Found:
        """Return what `find` computes for the definition, or for its body; memoized."""
        if find not in self._found:
            self._found[find] = find(asked)
        found: _Found = self._found[find]
        return found


@dataclass(frozen=True, slots=True)
class Definition:
    """A pattern that may be recursive: parameters, the lists I, O and B, and a body.

    `inputs` (I) are bound on entry, `outputs` (O) on exit, `bounded` (B) are left bound to terms
    no larger than the subject. The body sees its own parameters only, and may call every
    enclosing definition. `name` is for printing.
    """

    name: str
    parameters: tuple[str, ...]
    inputs: frozenset[str]
    outputs: frozenset[str]
    bounded: frozenset[str]
    body: Pattern
    span: Span | None = field(default=None, compare=False, repr=False)
    closed: Closed | None = field(default=None, compare=False, repr=False)
    means: Callable[..., object] | None = field(default=None, compare=False, repr=False)
    """The author's word on what it computes: a function of its parameters, in torch's operators."""
    given: Callable[[str], Definition] | None = field(default=None, compare=False, repr=False)
    """The pattern that a pattern parameter of it stands for; made when asked, for it may call this
    one with yet others."""
    apart: Callable[[], Pattern] | None = field(default=None, compare=False, repr=False)
    """The body of a recursive pattern in which other patterns are called, not put in."""
    unmarked: Definition | None = field(default=None, compare=False, repr=False)
    """The definition without the marks `keep` that were put in its body."""

    def of(self, body: Pattern) -> Definition:
        """Return the definition with another body that binds the same names."""
        closed = self.closed and Closed()
        return replace(self, body=body, apart=None, unmarked=None, closed=closed)

    def read(self, find: Callable[[Pattern], _Found]) -> _Found:
        """Return what `find` computes for the body; memoized if the definition is closed."""
        return find(self.body) if self.closed is None else self.closed.once(find, self.body)


@dataclass(frozen=True, slots=True)
class Mu:
    """`(mu(x; I; O; B). p)(y, ...)`: a recursive pattern, entered with the names y."""

    definition: Definition
    actuals: tuple[str, ...]
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    """`call_i(y, ...)`: the i-th enclosing recursive pattern, counted outwards from 0."""

    index: int
    actuals: tuple[str, ...]
    span: Span | None = field(default=None, compare=False, repr=False)


Pattern: TypeAlias = Var | Op | Fun | Alt | Exists | Guarded | Let | Constrained | Mu | Call


def alternation(patterns: Sequence[Pattern]) -> Pattern:
    """Return the alternation `p | (q | ...)` of one pattern or more, in order."""
    return reduce(lambda rest, pattern: Alt(pattern, rest), reversed(patterns))


# --- contexts of recursive patterns, and the arguments of their calls ---------------------------

Context: TypeAlias = tuple[Definition, ...]
"""A recursion context R: the enclosing recursive patterns, innermost first."""


def arg(parameters: Sequence[str], actuals: Sequence[str], name: str) -> str | None:
    """Return the actual paired with the first occurrence of a parameter, or None (section 2)."""
    for parameter, actual in zip(parameters, actuals, strict=False):
        if parameter == name:
            return actual
    return None


def args(definition: Definition, actuals: Sequence[str], names: Iterable[str]) -> frozenset[str]:
    """Return the actuals paired with those of the parameters `names` that have one."""
    found = (arg(definition.parameters, actuals, name) for name in names)
    return frozenset(actual for actual in found if actual is not None)


def shown(name: str) -> str:
    """Return a name as the user wrote it: names made by the elaborator end in `#` and a number."""
    return name.partition("#")[0] or name
