"""Rules that can never fire, because an earlier rule matches wherever they do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import getattr_static
from itertools import islice, product
from math import prod
from types import CellType, CodeType, FunctionType, MappingProxyType
from typing import Final, TypeAlias, assert_never

from pypm.core.guard_origins import origin_of
from pypm.core.guards import And, Attribute, AttributeTest, ClassTest, Constant, Guard, True_
from pypm.core.operators import Operator
from pypm.core.patterns import (
    Alt,
    Call,
    Constrained,
    Exists,
    Fun,
    Guarded,
    Let,
    Mu,
    Op,
    Pattern,
    Var,
)
from pypm.core.rules import Rule
from pypm.core.terms import ARGUMENT, DERIVED, Term, Terms, Value
from pypm.diagnostics import BudgetError, Diagnostic
from pypm.match.compile.extent import compares_terms
from pypm.match.lint.term_subjects import Trees
from pypm.match.matcher import Matcher

__all__ = ["shadowed"]

INSTANCES: Final = 16
"""The largest number of alternates in a pattern that is checked."""
STEPS: Final = 2_000


def shadowed(
    rules: Sequence[Rule], matchers: Sequence[Matcher], numbers: Sequence[int]
) -> Iterator[Diagnostic]:
    """Yield a warning for each rule to which an earlier one leaves no match.

    A pattern is represented by the most general terms that it matches, one for each way through its
    alternates: an earlier rule that matches these, and cannot decline, matches all that it does.
    Recursive patterns and rules with several outputs are not checked. `numbers` are the rules'
    numbers in the index, in order.
    """
    if not rules:
        return
    trees = Trees(matchers[0].index)
    by_number = {number: index for index, number in enumerate(numbers)}
    for index, rule in enumerate(rules):
        if len(rule.roots) > 1:
            continue
        try:
            terms = list(islice(_Instances().of(rule.roots[0], {}), INSTANCES + 1))
        except _Unknown:
            continue
        if len(terms) > INSTANCES:
            continue
        starts = [set(trees.tree(term).state.starts) for term in terms]
        for earlier in sorted(by_number.get(n, index) for n in set.intersection(*starts)):
            if earlier >= index or _may_do_more(rule, rules[earlier]):
                continue
            if _takes_all(rules[earlier], matchers[earlier], terms, trees):
                yield _shadow(rule, rules[earlier])
                break


def _may_do_more(rule: Rule, earlier: Rule) -> bool:
    """Return whether a rule accepts regions that the earlier one leaves, for effects, cost or
    exactness.
    """
    return (
        (rule.redraws and not earlier.redraws)
        or (rule.returns_kept and not earlier.returns_kept)
        or rule.communicates not in (False, earlier.communicates)
        or {rule.pays, earlier.pays} != {"always"}
        or not earlier.keeps(rule.exactness)
    )


def _takes_all(rule: Rule, matcher: Matcher, terms: Sequence[Term], trees: Trees) -> bool:
    (root, *others) = rule.roots
    if others or compares_terms(root):
        return False
    if not isinstance(rule.guard, True_) or rule.unless is not None:
        return False
    body = rule.replacement
    if isinstance(body, FunctionType) and _reaches_decline(body, set()):
        return False
    try:
        return all(any(True for _ in matcher.answers(trees.tree(t), budget=STEPS)) for t in terms)
    except BudgetError:
        return False


def _reaches_decline(function: FunctionType, seen: set[FunctionType]) -> bool:
    """Return whether a function, or a Python function that it names, names `decline`."""
    seen.add(function)
    codes = [function.__code__]
    for code in codes:
        codes += [part for part in code.co_consts if isinstance(part, CodeType)]
    names = {name for code in codes for name in code.co_names}
    if not names.isdisjoint({"decline", "Decline"}):
        return True
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    owners = [*cells, *defaults, *(function.__globals__.get(name) for name in names)]
    owners = [part for value in owners for part in _held(value) if not _is_of_torch(part)]
    parts = [getattr_static(owner, name, None) for owner in owners for name in names]
    calls = [getattr_static(type(owner), "__call__", None) for owner in owners]
    return any(
        _reaches_decline(value, seen)
        for value in (*owners, *parts, *calls)
        if isinstance(value, FunctionType) and value not in seen and not _is_of_torch(value)
    )


def _held(value: object) -> list[object]:
    """Return a value, and what can be called of the items of a container or of a `partial`."""
    found: dict[int, object] = {}
    todo = [value]
    while todo:
        part = todo.pop()
        if id(part) in found:
            continue
        found[id(part)] = part
        if isinstance(part, partial):
            todo += (part.func, *part.args, *part.keywords.values())
        elif isinstance(part, dict):
            todo += part.values()
        elif isinstance(part, list | tuple | set | frozenset):
            todo += part
    return [part for part in found.values() if part is value or callable(part)]


def _is_of_torch(value: object) -> bool:
    """Return whether a module, or a value defined in one, is torch's, and so declines nothing."""
    name = getattr(value, "__module__", None) or getattr(value, "__name__", None)
    return isinstance(name, str) and name.partition(".")[0] == "torch"


def _shadow(rule: Rule, earlier: Rule) -> Diagnostic:
    place = f" at {earlier.span}" if earlier.span is not None else ""
    return Diagnostic(
        f"rule `{rule.name}` never fires: `{earlier.name}` matches wherever it does, and is first",
        rule.span,
        f"after `{earlier.name}`{place}",
        help=f"put `{rule.name}` before `{earlier.name}`, or leave it out",
    )


# --- the most general terms that a pattern matches ------------------------------------------------


class _Unknown(Exception):
    """The most general terms do not exist, are too many, or are unknown."""


@dataclass(frozen=True)
class _Demands:
    """Demands on the values of names: patterns that they match, and attributes."""

    patterns: Mapping[str, tuple[Pattern, Mapping[str, str]]] = field(default_factory=dict)
    attributes: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)


_NOTHING: Final = _Demands()
_Names: TypeAlias = Mapping[str, str]
"""Local names, each mapped to a globally unique one."""


class _Instances:
    def __init__(self) -> None:
        self._terms = Terms()
        self._fresh = 0

    def of(
        self,
        pattern: Pattern,
        names: _Names,
        demands: _Demands = _NOTHING,
        attributes: Mapping[str, Value] = MappingProxyType({}),
    ) -> Iterator[Term]:
        """Yield the terms for a pattern, one for each way through its alternates."""
        match pattern:
            case Var(name):
                unique = names.get(name, name)
                known = {**attributes, **demands.attributes.get(unique, {})}
                if unique in demands.patterns:
                    rest = {n: p for n, p in demands.patterns.items() if n != unique}
                    asked, scope = demands.patterns[unique]
                    yield from self.of(asked, scope, replace(demands, patterns=rest), known)
                else:
                    yield self._make(Operator(f"?{unique}"), (), known)
            case Op(operator, arguments):
                yield from self._applied(operator, arguments, names, demands, attributes)
            case Fun(name, arguments):
                operator = Operator(f"?{names.get(name, name)}")
                yield from self._applied(operator, arguments, names, demands, attributes)
            case Alt(left, right):
                yield from self.of(left, names, demands, attributes)
                yield from self.of(right, names, demands, attributes)
            case Exists(name, body):
                self._fresh += 1
                scope = {**names, name: f"{name}#{self._fresh}"}
                yield from self.of(body, scope, demands, attributes)
            case Guarded(body, guard):
                yield from self.of(body, names, _guarded(guard, names, demands), attributes)
            case Let(body, _, _):
                yield from self.of(body, names, demands, attributes)
            case Constrained(body, constraint, name):
                unique = names.get(name, name)
                if unique in demands.patterns:
                    raise _Unknown
                patterns = {**demands.patterns, unique: (constraint, names)}
                yield from self.of(body, names, replace(demands, patterns=patterns), attributes)
            case Mu(definition, actuals):
                pairs = zip(definition.parameters, actuals, strict=False)
                scope = {p: names.get(a, a) for p, a in reversed([*pairs])}
                yield from self.of(definition.body, scope, demands, attributes)
            case Call():
                raise _Unknown
            case _:
                assert_never(pattern)

    def _applied(
        self,
        operator: Operator,
        arguments: Sequence[Pattern],
        names: _Names,
        demands: _Demands,
        attributes: Mapping[str, Value],
    ) -> Iterator[Term]:
        choices = [list(self.of(argument, names, demands)) for argument in arguments]
        if prod(map(len, choices)) > INSTANCES:
            raise _Unknown
        for children in product(*choices):
            yield self._make(operator, children, attributes)

    def _make(
        self, operator: Operator, children: tuple[Term, ...], known: Mapping[str, Value]
    ) -> Term:
        own = {name.removesuffix(ARGUMENT): v for name, v in known.items() if name not in DERIVED}
        return self._terms.make(operator, children, own, known)


def _guarded(guard: Guard, names: _Names, demands: _Demands) -> _Demands:
    """Return the demands with the attributes that a guard fixes, and nothing else of it."""
    if isinstance(guard, And):
        return _guarded(guard.right, names, _guarded(guard.left, names, demands))
    match origin_of(guard):
        case AttributeTest(Attribute(name, attribute), Constant(value), None):
            pass
        case ClassTest(name, tag):
            attribute, value = "tags", (tag,)
        case _:
            return demands
    unique = names.get(name, name)
    known = {**demands.attributes.get(unique, {}), attribute: value}
    return replace(demands, attributes={**demands.attributes, unique: known})
