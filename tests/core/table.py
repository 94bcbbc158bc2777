"""The table of cases per pattern form, as text: every engine must give these answers."""

from __future__ import annotations

from dataclasses import dataclass

from pypm.core.guards import Constant
from pypm.core.patterns import Pattern
from pypm.core.terms import Term, Terms, Value
from pypm.core.text import parse_expression, parse_pattern, parse_term


@dataclass(frozen=True)
class Case:
    """Patterns (one a root), the subjects they are matched with, and all answers in order.

    In an answer a name is given a term, or after `=` a constant (`=1`, `=&f` for an operator).
    """

    form: str
    patterns: tuple[str, ...]
    subjects: tuple[str, ...]
    answers: tuple[dict[str, str], ...]

    def __str__(self) -> str:
        return f"{self.form}: {', '.join(self.patterns)} on {', '.join(self.subjects)}"

    def read(self) -> tuple[list[Pattern], list[Term], list[dict[str, Value]]]:
        terms = Terms()
        subjects = [parse_term(text, terms) for text in self.subjects]
        expected = [{n: _value(text, terms) for n, text in a.items()} for a in self.answers]
        return [parse_pattern(text) for text in self.patterns], subjects, expected


def _value(text: str, terms: Terms) -> Value:
    if not text.startswith("="):
        return parse_term(text, terms)
    constant = parse_expression(text[1:])
    assert isinstance(constant, Constant)
    return constant.value


def case(form: str, pattern: str, subject: str, *answers: dict[str, str]) -> Case:
    return Case(form, (pattern,), (subject,), answers)


CHAIN = "rec P(x, F; out: x, F; small: x) { $F(P^0(x, F)) | $F(x) }(x, F)"
WRAP = "rec W(y; out: y; small: y) { h(W^0(y)) | y }(y)"

TABLE = [
    case("var", "x", "f(a, b)", {"x": "f(a, b)"}),
    case("var", "f(x, y)", "f(a, b)", {"x": "a", "y": "b"}),
    case("var", "f(x, x)", "f(g(a), g(a))", {"x": "g(a)"}),
    case("var", "f(x, x)", "f(a, b)"),
    case("var", "f(x, x)", "f(a{v=1}, a{v=2})"),
    case("var", "f(x, f(y, x))", "f(a, f(b, a))", {"x": "a", "y": "b"}),
    case("op", "a()", "a", {}),
    case("op", "a()", "b"),
    case("op", "f(a(), b())", "f(a, b)", {}),
    case("op", "f(a(), b())", "f(b, a)"),
    case("op", "f(x)", "f(a, b)"),
    case("op", "f(x, y, z)", "f(a, b)"),
    case("op", "keep g(keep g(x))", "g(g(a))", {"x": "a"}),
    case("op", "a()", "a{v=1}", {}),
    case("fun", "$F(x)", "g(a)", {"F": "=&g", "x": "a"}),
    case("fun", "$F(x)", "f(a, b)"),
    case("fun", "$F($F(x))", "g(g(a))", {"F": "=&g", "x": "a"}),
    case("fun", "$F($F(x))", "g(h(a))"),
    case("fun", "$F($G(x))", "g(h(a))", {"F": "=&g", "G": "=&h", "x": "a"}),
    case("fun", "$F()", "a", {"F": "=&a"}),
    case("fun", "$x(x)", "g(a)"),
    case("fun", "f($F(x), $F(y))", "f(g(a), g(b))", {"F": "=&g", "x": "a", "y": "b"}),
    case("alt", "x | y", "a", {"x": "a"}, {"y": "a"}),
    case("alt", "x | x", "a", {"x": "a"}, {"x": "a"}),
    case("alt", "b() | x", "a", {"x": "a"}),
    case("alt", "a() | b()", "g(a)"),
    case("alt", "f(x | y, z)", "f(a, b)", {"x": "a", "z": "b"}, {"y": "a", "z": "b"}),
    case(
        "alt",
        "f(x | y, z | w)",
        "f(a, b)",
        {"x": "a", "z": "b"},
        {"x": "a", "w": "b"},
        {"y": "a", "z": "b"},
        {"y": "a", "w": "b"},
    ),
    case("alt", "f(x | g(x), x)", "f(g(a), a)", {"x": "a"}),
    case("alt", "(x | y) | z", "a", {"x": "a"}, {"y": "a"}, {"z": "a"}),
    case("exists", "exists x. x", "a", {}),
    case("exists", "f(exists x. x, exists x. x)", "f(a, b)", {}),
    case("exists", "exists x. f(x, x)", "f(a, b)"),
    case("exists", "f(x, exists x. g(x))", "f(a, g(b))", {"x": "a"}),
    case("exists", "exists F. $F(x)", "g(a)", {"x": "a"}),
    case("exists", "exists x. a()", "a"),
    case("exists", "exists x. x let y = x.v", "a{v=1}", {"y": "=1"}),
    case("guard", "x where x.v == 1", "a{v=1}", {"x": "a{v=1}"}),
    case("guard", "x where x.v == 1", "a{v=2}"),
    case("guard", "x where x.v == 1", "a"),
    case("guard", "x where not x.v == 1", "a"),
    case("guard", "x where x.v == 1 or true", "a", {"x": "a"}),
    case("guard", "f(x, y) where x.v < y.v", "f(a{v=1}, b{v=2})", {"x": "a{v=1}", "y": "b{v=2}"}),
    case("guard", "f(x where y.v == 1, y)", "f(a, b{v=1})"),
    case("guard", "f(x, y) where x == y", "f(a, a)", {"x": "a", "y": "a"}),
    case("guard", "$F(x) where F.name in ('g', 'h')", "h(a)", {"F": "=&h", "x": "a"}),
    case("guard", "(x | g(y)) where y == y", "g(a)", {"y": "a"}),
    case("let", "x let y = x.v + 1", "a{v=1}", {"x": "a{v=1}", "y": "=2"}),
    case("let", "x let y = x.v", "a"),
    case("let", "f(x, y) let y = x", "f(a, a)", {"x": "a", "y": "a"}),
    case("let", "f(x, y) let y = x", "f(a, b)"),
    case("let", "f(x let z = x.v, y let z = y.v)", "f(a{v=1}, b{v=2})"),
    case("let", "g(x) let x = 1", "g(a)"),
    case("let", "g(x let y = x) with y <= a()", "g(a)", {"x": "a", "y": "a"}),
    case("let", "a() let s = 1 | b()", "a", {"s": "=1"}),
    case("constraint", "g(x) with x <= h(y)", "g(h(a))", {"x": "h(a)", "y": "a"}),
    case("constraint", "g(x) with x <= h(y)", "g(a)"),
    case("constraint", "x with x <= (g(y) | y)", "g(a)",
         {"x": "g(a)", "y": "a"}, {"x": "g(a)", "y": "g(a)"}),
    case("constraint", "f(x with y <= a(), y)", "f(b, a)"),
    case("constraint", "$F(x) with F <= y", "g(a)"),
    case("constraint", "x let s = 1 with s <= y", "a"),
    case(
        "constraint",
        "exists u v. (f(u, v) | f(v, u)) with u <= a() with v <= g(x)",
        "f(g(b), a)",
        {"x": "b"},
    ),
    case("mu", CHAIN, "g(g(a))", {"F": "=&g", "x": "a"}, {"F": "=&g", "x": "g(a)"}),
    case("mu", CHAIN, "g(h(a))", {"F": "=&g", "x": "h(a)"}),
    case("mu", CHAIN, "a"),
    case("mu", "rec P() { f(exists x. x, P^0()) | a() }()", "f(a, f(b, a))", {}),
    case("mu", "rec P(x) { exists y. f(x, y) }(y)", "f(a, b)", {"y": "a"}),
    case("mu", "f(rec P(x) { exists y. f(x, y) }(y), y)", "f(f(a, a), b)"),
    case("mu", "rec P(x, y) { f(x, y) }(z, z)", "f(a, a)", {"z": "a"}),
    case("mu", "rec P(x, y) { f(x, y) }(z, z)", "f(a, b)"),
    case("mu", "rec P(x) { f(x, y) }(y)", "f(a, b)"),
    case("mu", "rec P(x, x) { g(x) }(y, z)", "g(a)", {"y": "a"}),
    case("mu", "rec P(x, y) { g(x) }(z)", "g(a)", {"z": "a"}),
    case("mu", "f(x, rec P(y) { g(y) }(x))", "f(a, g(a))", {"x": "a"}),
    case("call", "^0()", "a"),
    case("call", "rec P() { g(rec Q() { h(P^1()) }()) | a() }()", "g(h(g(h(a))))", {}),
    case("call", "rec P(x, y) { g(P^0(y, x)) | f(x, y) }(x, y)", "g(f(a, b))",
         {"y": "a", "x": "b"}),
    case(
        "call",
        "rec P() { rec Q() { g(P^1()) | h(Q^0()) | a() }() }()",
        "g(h(g(a)))",
        {},
    ),
    case(
        "call",
        "rec P(x; out: x) { (exists y. (" + WRAP + ") with y <= g(P^0(x))) | x }(x)",
        "h(g(a))",
        {"x": "a"},
        {"x": "h(g(a))"},
    ),
    Case("roots", ("g(x)", "h(x)"), ("g(a)", "h(a)"), ({"x": "a"},)),
    Case("roots", ("g(x)", "h(x)"), ("g(a)", "h(b)"), ()),
    Case("roots", ("x | y", "z"), ("a", "b"), ({"x": "a", "z": "b"}, {"y": "a", "z": "b"})),
]  # fmt: skip
