"""Subjects written as Python expressions, and one check that runs a pattern on every engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pypm import Parameter, operator
from pypm.core import machine
from pypm.core.guarded import check_guarded
from pypm.core.guards import Constant, Function
from pypm.core.operators import Operator, Signature
from pypm.core.patterns import Pattern
from pypm.core.printing import print_pattern
from pypm.core.terms import Term, Terms, Value
from pypm.core.text import parse_pattern
from pypm.core.wellformed import bound_after_all, check_wellformed
from pypm.fx import GETITEM
from pypm.lang.overloads import INFIX, NEGATE
from pypm.lang.pattern_function import PatternFunction
from pypm.match.lint.term_subjects import Trees
from pypm.match.matcher import Answer, Matcher

TERMS = Terms()


class Subject:
    """A term under construction: infix operators make larger ones."""

    def __init__(self, term: Term) -> None:
        self.term = term

    def __add__(self, other: object) -> Subject:
        return make(_ADD, self, other)

    def __radd__(self, other: object) -> Subject:
        return make(_ADD, other, self)

    def __sub__(self, other: object) -> Subject:
        return make(_SUB, self, other)

    def __mul__(self, other: object) -> Subject:
        return make(_MUL, self, other)

    def __rmul__(self, other: object) -> Subject:
        return make(_MUL, other, self)

    def __truediv__(self, other: object) -> Subject:
        return make(_DIV, self, other)

    def __matmul__(self, other: object) -> Subject:
        return make(_MATMUL, self, other)

    def __neg__(self) -> Subject:
        return make(NEGATE, self)

    def __getitem__(self, index: int) -> Subject:
        return make(GETITEM, self, index=index)


_BY_NAME = {operator.name: operator for operator in INFIX.values()}
_ADD, _SUB, _MUL = (_BY_NAME[f"aten.{name}"] for name in ("add", "sub", "mul"))
_DIV, _MATMUL = _BY_NAME["aten.div"], _BY_NAME["aten.matmul"]


def make(called: Operator, *children: object, **values: Value) -> Subject:
    """An operator on children (numbers are literals, lists are lists); what is no argument of it
    is a derived attribute, such as `rank`.
    """
    defaults = called.attribute_defaults
    attributes = {name: values.get(name, default) for name, default in defaults.items()}
    derived = {name: value for name, value in values.items() if name not in defaults}
    derived = {"tags": tuple(sorted(called.tags)), "dimension_rank": None, **derived}
    term = TERMS.make(called, map(child, children), attributes, derived)
    assert term.derived == derived, "the same term was made with other derived attributes"
    return Subject(term)


def child(value: object) -> Term:
    match value:
        case Subject(term=term):
            return term
        case list():
            return TERMS.list(map(child, value))
    return TERMS.literal(value)


def leaf(name: str, **derived: Value) -> Subject:
    return make(Operator(name), **derived)


a, b, c = leaf("a"), leaf("b"), leaf("c")

RELU = operator("my.relu", ["x"], tags=["pointwise"])
EXP = operator("my.exp", ["x"], tags=["pointwise"])
SUM = operator(
    "my.sum",
    [
        "x",
        Parameter("dim", "attribute", None, dimension=True),
        Parameter("keepdim", "attribute", False),
    ],
)
WHERE = operator("my.where", ["c", "x", "y"], tags=["pointwise"])
MEAN = Operator(
    "my.mean",
    (
        Signature((Parameter("x"),)),
        Signature((Parameter("x"), Parameter("dim", "attribute", -1, dimension=True))),
        Signature((Parameter("x"), Parameter("dim", "attribute"), Parameter("w"))),
    ),
)
LAST = operator("my.last", ["x", Parameter("dim", "attribute", -1, dimension=True)])
CAT = operator("my.cat", [Parameter("tensors", "list"), Parameter("dim", "attribute", 0)])
ADDMM = operator(
    "my.addmm", ["bias", "x", "y", Parameter("beta", "attribute", 1, keyword_only=True)]
)
NORM = operator("my.norm", ["x", Parameter("weight", "term", None)])
SPLIT = operator("my.split", ["x", Parameter("size", "attribute")])
VIEW = operator("my.view", ["x", Parameter("size", "attribute")])
RENAME = operator("my.rename", ["x"])


def value(expected: object) -> Value:
    """A value as matching gives it: subjects and lists of them are terms."""
    return child(expected) if isinstance(expected, Subject | list) else expected


def only(form: PatternFunction, bindings: Iterable[tuple[str, Value]]) -> dict[str, Value]:
    return {name: bound for name, bound in bindings if name in form.parameters}


def matches(form: PatternFunction, *subjects: Subject) -> list[Answer]:
    """The answers of the fast matcher, one subject for each root."""
    matcher = Matcher(form.core)
    trees = Trees(matcher.index)
    answers: list[Answer | None] = [None]
    for root, subject in enumerate(subjects):
        answers = [
            extended
            for given in answers
            for extended in matcher.answers(trees.tree(subject.term), root=root, given=given)
        ]
    return [answer for answer in answers if answer is not None]


def bindings(form: PatternFunction, *subjects: Subject) -> list[dict[str, Value]]:
    """What the parameters are bound to in each answer, the same on both engines."""
    fast = [only(form, answer.bindings.items()) for answer in matches(form, *subjects)]
    terms = [subject.term for subject in subjects]
    slow = [only(form, theta.items()) for theta in machine.answers(form.core, terms)]
    assert fast == slow
    return fast


def assert_answers(
    form: PatternFunction, subjects: tuple[Subject, ...], expected: list[dict[str, Any]]
) -> None:
    check(form.core)
    found = bindings(form, *subjects)
    assert found == [{name: value(bound) for name, bound in row.items()} for row in expected]


def check(roots: tuple[Pattern, ...]) -> None:
    """That a pattern is well-formed and guarded, and the same after printing and parsing."""
    for index, root in enumerate(roots):
        assert check_wellformed(root, bound_after_all(roots[:index])) == []
        assert check_guarded(root) == []
        parsed = parse_pattern(print_pattern(root), functions=_functions(root), names=_opaque(root))
        assert parsed == root


def parts(value: Any) -> Iterable[Any]:
    """A dataclass value and everything in it."""
    yield value
    if isinstance(value, tuple):
        for element in value:
            yield from parts(element)
    elif not isinstance(value, Operator | Function):
        for name in getattr(value, "__dataclass_fields__", ()):
            yield from parts(getattr(value, name))


def _functions(root: Pattern) -> dict[str, Function]:
    return {part.name: part for part in parts(root) if isinstance(part, Function)}


def _opaque(root: Pattern) -> Any:
    known = {repr(p.value): p.value for p in parts(root) if isinstance(p, Constant)}
    return known.__getitem__
