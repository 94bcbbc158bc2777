"""The public words of the language: the decorators `pattern` and `rule`, `decline`, and markers."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import CodeType, FrameType, FunctionType
from typing import Final, Literal, TypeAlias, overload

from pypm.core.guards import conjunction
from pypm.core.python_settings import with_room
from pypm.core.rules import (
    DECLINES,
    PAYS,
    TOGETHER,
    Communicates,
    Decline,
    Exactness,
    Pays,
    Rule,
    Unless,
    as_exactness,
)
from pypm.core.terms import Value
from pypm.core.wellformed import bound_after_all
from pypm.diagnostics import Diagnostic, PatternError, Span
from pypm.lang.capture import Captured, Located, capture
from pypm.lang.declare import reach_of
from pypm.lang.elaborate import elaborate_partial
from pypm.lang.guard_expressions import asserted
from pypm.lang.named_pattern import Marker
from pypm.lang.pattern_function import PatternFunction
from pypm.lang.predicates import predicate
from pypm.lang.scope import Scope, Variable
from pypm.lang.tags import check_tag

__all__ = ["decline", "keep", "let", "op_var", "pattern", "predicate", "rule", "var"]

var: Final = Marker("var")
"""`x = var()`: a variable of the pattern that is not a parameter."""
op_var: Final = Marker("op_var")
"""`f = op_var(tag="pointwise")`: a variable for an operator, of a class of operators or any."""
let: Final = Marker("let")
"""`let(s=1 / c.value)`: binds a name to a computed value."""
keep: Final = Marker("keep")
"""`keep(p)`: what p matches may have users outside the match, and stays alive for them."""


@overload
def pattern(function: Callable[..., Value]) -> PatternFunction: ...
@overload
def pattern(
    *, through: PatternFunction | None = None, means: Callable[..., Value] | None = None
) -> Callable[[Callable[..., object]], PatternFunction]: ...
def pattern(
    function: Callable[..., Value] | None = None,
    *,
    through: PatternFunction | None = None,
    means: Callable[..., Value] | None = None,
) -> PatternFunction | Callable[[Callable[..., object]], PatternFunction]:
    """Make a pattern of a function, or add an alternate to the pattern of that name.

    Arguments:
        function: the definition; its source is read, and it never runs.
        through: a pattern of one parameter. Each operator of the pattern also matches below any
            number of operators that `through` describes.
        means: what every alternate computes, as a function of the parameters, in torch's operators.
            `pypm.tools.prove` proves it of each alternate, and uses it where the pattern is called.
            One alternate says it for all.

    A definition is an alternate if its name is already bound, in the frame that runs the decorator,
    to a pattern that the same code made at an earlier line. Raises PatternError if the source
    cannot be read.
    """
    frame = sys._getframe(1)
    if function is not None:
        return _pattern(function, None, None, frame)

    def decorate(function: Callable[..., Value]) -> PatternFunction:
        return _pattern(function, through, means, frame)

    return decorate


def _pattern(
    function: Callable[..., Value],
    through: PatternFunction | None,
    means: Callable[..., Value] | None,
    frame: FrameType,
) -> PatternFunction:
    """Return the pattern of a definition whose decorator runs in `frame`. Raises PatternError."""
    captured = capture(function, frame)
    given: object = through  # whatever its annotation says
    is_pattern = isinstance(given, PatternFunction)
    if through is not None and not (is_pattern and len(through.parameters) == 1):
        raise PatternError(
            Diagnostic(
                "`through` takes a pattern of one parameter",
                captured.span(captured.tree.decorator_list[0]),
                f"`{through.name}` has {len(through.parameters)}"
                if is_pattern
                else "not a pattern",
                "describe the operators to look through, as in `def NoOp(x): ...`",
            )
        )
    known = frame.f_locals.get(captured.name, frame.f_globals.get(captured.name))
    home = _home(frame)
    if isinstance(known, PatternFunction) and _is_same(known.home, home):
        last = known.alternates[-1]
        if last.tree.lineno < captured.tree.lineno:
            alternates = (*known.alternates, captured)
            return PatternFunction(
                captured.name,
                alternates,
                through or known.through,
                known.home,
                means=means or known.means,
            )
    return PatternFunction(captured.name, (captured,), through, home, means=means)


def _home(frame: FrameType) -> CodeType | str:
    """Return the code that runs a definition, which all definitions of one pattern share.

    A notebook compiles each statement of a cell by itself, so there it is the file name: each text
    of a cell has its own, and no such file exists.
    """
    code = frame.f_code
    is_top = frame.f_locals is frame.f_globals
    return code.co_filename if is_top and not os.path.exists(code.co_filename) else code


def _is_same(one: CodeType | str, other: CodeType | str) -> bool:
    # Code compares by content, which a reload does not change.
    return one is other or (isinstance(one, str) and one == other)


def decline(reason: str) -> Decline:
    """Return the value by which a rule's body declines a match; reports show the `reason`.

    A body that calls `decline` must return a decline. Otherwise the rewrite raises RewriteError.
    """
    made = DECLINES.get()
    if made is not None:
        frame = sys._getframe(1)
        made.append((frame.f_code, frame.f_lasti))
    return Decline(reason)


def rule(
    matched: PatternFunction,
    *,
    absorb: str | None = None,
    redraws: bool = False,
    communicates: Communicates = False,
    returns_kept: bool = False,
    pays: Pays = "always",
    exactness: Exactness = "reassociated",
    unless: Unless | None = None,
    reads: Callable[..., object] | None = None,
    law: Law = "stated",
    name: str | None = None,
) -> Callable[[Callable[..., object]], Rule]:
    """Make a rule of a pattern and a function that builds the replacement.

    Arguments:
        matched: the pattern.
        absorb: a class of operators, such as "pointwise". Operators of that class on paths between
            matched ones join the region.
        redraws: True if the region may sample random numbers. The replacement samples its own: the
            values have the same distribution, but are not the same.
        communicates: True if the region may hold functional collectives; the replacement issues the
            same ones in the same order. "together" if the graph keeps these as a whole: all rules
            that say so are applied, on each process alike, or none.
        returns_kept: True if the function also returns, in the order of `match.roots`, the values
            marked `keep` that others use; else these stay in the graph.
        pays: "always" if the rule is worth it wherever it may be applied; "mostly" if
            `torch.compile` is to apply it only where it measures that it is faster; "sometimes" if
            nothing else is to apply it at all; "by data" for the same, where the gain depends on
            the contents of inputs.
        exactness: "bitwise" if the replacement has the same bits; "rounding" if it computes the
            same operations with fewer roundings; "reassociated" if it is equal in real numbers.
        unless: a function of a root's fake value and the graph's dialect. It returns the reason for
            which the rule cannot apply there, or None. With a reason, nothing is searched. It only
            saves time: the body must decline what it cannot do.
        reads: a function of a match, whose bindings are nodes. It returns a `pypm.fx.Reading`: what
            the body needs to know of the nodes outside of the match that compute its operands. The
            body finds it in `match.reading`.
        law: "proved" if the definition is to fail unless `pypm.tools.prove` proves the rule.
        name: the rule's name; by default, that of the function.

    The decorated function's parameters are parameters of the pattern, and `match` for the match
    itself. Its leading `assert`s are guards. The rest is ordinary Python, run once for each
    candidate on traced values; it returns the replacement, or `decline(reason)`.

    Raises TypeError if `matched` is no pattern, ValueError for an unknown `pays`, `communicates` or
    `law`, PyPMError for an unknown `exactness`. The decorator raises PatternError if the function
    is no valid rule for it, or its law is not proved.
    """
    _check_is_pattern(matched)
    said = _checked_words(pays, communicates, law, exactness)

    def decorate(function: Callable[..., object]) -> Rule:
        frame = sys._getframe(1)
        made = replace(_rule(matched, function, absorb, unless, name, frame), exactness=said)
        made = replace(made, redraws=redraws, communicates=communicates, returns_kept=returns_kept)
        return _checked(replace(made, pays=pays, reads=reads), law)

    return decorate


Law: TypeAlias = Literal["stated", "proved"]
"""The grounds on which replacement and pattern are equal: the author's word, or a proof."""


class Prover:
    """The check of rules that have to be proved. It is far above this folder: `pypm` sets it."""

    check: Callable[[Rule], None]


PROVER: Final = Prover()


def _checked(rule: Rule, law: Law) -> Rule:
    """Return a rule, after its proof if that is asked for. Raises PatternError if it fails."""
    if law == "proved":
        PROVER.check(rule)
    return rule


def _checked_words(pays: str, communicates: bool | str, law: str, exactness: str) -> Exactness:
    """Return the word for exactness, if all words are known ones. Raises ValueError, PyPMError."""
    if law not in ("stated", "proved"):
        raise ValueError(f"`law` is 'stated' or 'proved', not {law!r}")
    if pays not in PAYS:
        raise ValueError(f"`pays` is one of {', '.join(map(repr, PAYS))}, not {pays!r}")
    if communicates not in (False, True, TOGETHER):
        raise ValueError(f"`communicates` is True, False or {TOGETHER!r}, not {communicates!r}")
    return as_exactness(exactness)


def _check_is_pattern(given: object) -> None:
    if isinstance(given, FunctionType):
        raise TypeError(
            f"`@rule` takes a pattern, as in `@rule(P)`; `{given.__name__}` is a plain function: "
            "if it is the pattern, mark it with `@pattern`"
        )
    if not isinstance(given, PatternFunction):
        raise TypeError(f"`@rule` takes a pattern, as in `@rule(P)`, not {given!r}")


@with_room
def _rule(
    matched: PatternFunction,
    function: Callable[..., object],
    absorb: str | None,
    unless: Unless | None,
    name: str | None,
    frame: FrameType,
) -> Rule:
    """Return the rule of a function whose decorator runs in `frame`. Raises PatternError."""
    captured = capture(function, frame)
    captured.check_plain_parameters("rule")
    parameters = tuple(argument.arg for argument in captured.tree.args.args)
    wanted = tuple(p for p in parameters if p != "match")
    for argument in captured.tree.args.args:
        if argument.arg != "match" and argument.arg not in matched.parameters:
            raise captured.error(
                f"rule parameter `{argument.arg}` is not a parameter of pattern `{matched.name}`",
                argument,
                "unknown to the pattern",
                f"the pattern has {', '.join(matched.parameters)}; `match` is the match itself",
            )
        if argument.arg != "match":
            _check_wanted(matched, argument.arg, captured.span(argument))
    if absorb is not None:
        check_tag(absorb, _keyword(captured, "absorb"), captured)
    operators = matched.operator_parameters
    shape_of = partial(reach_of(matched).shapes.of, matched, matched.alternates[0])
    scope = Scope(
        captured,
        {name: Variable(name, name in operators, shape=shape_of(name)) for name in wanted},
    )
    guards, rest = [], list(captured.tree.body)
    while rest and (isinstance(rest[0], ast.Assert) or _is_docstring(rest[0])):
        statement = rest.pop(0)
        if isinstance(statement, ast.Assert):
            guards.append(asserted(statement, scope))
    _check_declines(captured, rest)
    return Rule(
        name or function.__name__,
        wanted,
        matched.core,
        _without_guards(captured, rest),
        conjunction(guards),
        absorb,
        partial=elaborate_partial(matched, wanted),
        fingerprint=_fingerprint(captured),
        unless=unless,
        span=captured.header(),
    )


def _check_wanted(form: PatternFunction, parameter: str, span: Span) -> None:
    """Raise PatternError if a match of `form` may leave unbound what is wanted at `span`."""
    if parameter in bound_after_all(form.core):
        return
    without = [a.header() for a in form.alternates if parameter not in a.said]
    notes = [f"the alternate at {place} says nothing of `{parameter}`" for place in without]
    raise PatternError(
        Diagnostic(
            f"`{parameter}` may be unbound where pattern `{form.name}` matches",
            span,
            "wanted here",
            f"bind it in every alternate of `{form.name}`, or give it a default there: "
            f"`{parameter}=...`",
            tuple(notes or [f"not every way through {form.alternates[0].header()} binds it"]),
        )
    )


def _check_declines(captured: Captured, body: list[ast.stmt]) -> None:
    """Raise PatternError if a statement of a rule's body calls `decline` and drops the result."""
    for part in (part for statement in body for part in ast.walk(statement)):
        if not isinstance(part, ast.Expr) or not isinstance(part.value, ast.Call):
            continue
        if captured.value_of(part.value.func) is decline:
            raise captured.error(
                f"rule `{captured.name}` calls `decline` and does not return it",
                part.value,
                "has no effect: the body goes on",
                f"write `return {ast.unparse(part.value)}`",
            )


def _keyword(captured: Captured, name: str) -> Located:
    """Return the argument of a decorator with this keyword; without one, the whole definition."""
    keywords = [k for d in captured.tree.decorator_list for k in getattr(d, "keywords", ())]
    return next((k.value for k in keywords if k.arg == name), captured.tree)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _fingerprint(captured: Captured) -> str:
    """Return the source of a rule and the plain constants that it names."""
    used = {n: v for n, v in captured.defined.items() if _is_plain(v)}
    return f"{captured.source}\n{sorted(used.items(), key=str)!r}"


def _is_plain(value: object) -> bool:
    """Return whether a value is a constant that prints the same in every process."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, complex, str)


def _without_guards(captured: Captured, rest: list[ast.stmt]) -> Callable[..., object]:
    """Return the function without its leading asserts, with the same scope and line numbers.

    `rest` are its remaining statements. Raises PatternError if there are none.
    """
    function = captured.function
    if not rest:
        raise captured.error(
            f"rule `{captured.name}` replaces nothing",
            captured.tree,
            "no replacement",
            "end it with `return` and the replacement, or `return decline(reason)`",
        )
    if len(rest) == len(captured.tree.body):
        return function
    original: CodeType = function.__code__
    tree = ast.FunctionDef(
        captured.name, captured.tree.args, rest, [], None, None, lineno=1, col_offset=0
    )
    maker = ast.FunctionDef(
        "make",
        ast.arguments([], [ast.arg(n) for n in original.co_freevars], None, [], [], None, []),
        [tree],
        [],
        None,
        None,
    )
    module = ast.fix_missing_locations(ast.Module([maker], []))
    make = next(
        c for c in compile(module, captured.file, "exec").co_consts if isinstance(c, CodeType)
    )
    code = next(c for c in make.co_consts if isinstance(c, CodeType) and c.co_name == captured.name)
    cells = dict(zip(original.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(cells[free] for free in code.co_freevars)
    body = FunctionType(code, function.__globals__, captured.name, function.__defaults__, closure)
    body.__qualname__ = function.__qualname__
    return body
