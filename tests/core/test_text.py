"""The text syntax: parse after print is identity, minimal parentheses, and errors with a place."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pypm import RuleSet
from pypm.core.guards import (
    FUNCTIONS,
    And,
    Apply,
    Attribute,
    Constant,
    Equal,
    Expression,
    Function,
    Guard,
    Holds,
    Less,
    Not,
    Or,
    Reference,
    True_,
    Tuple,
)
from pypm.core.operators import Operator
from pypm.core.patterns import (
    Alt,
    Call,
    Constrained,
    Definition,
    Exists,
    Fun,
    Guarded,
    Let,
    Mu,
    Op,
    Pattern,
    Var,
)
from pypm.core.printing import print_expression, print_guard, print_pattern, print_term, print_value
from pypm.core.record_expressions import made, selected
from pypm.core.records import is_field_name
from pypm.core.rules import Build, Rule, print_rule, print_rules, print_template
from pypm.core.terms import Term, Terms
from pypm.core.text import (
    parse_expression,
    parse_guard,
    parse_pattern,
    parse_rule,
    parse_rules,
    parse_template,
    parse_term,
)
from pypm.diagnostics import SyntaxDiagnostic
from tests.core import strategies
from tests.core.strategies import TERMS, cases, terms


class Opaque:
    """A constant known by name only, such as a dtype."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


FLOAT32 = Opaque("torch.float32")
DEVICE = Opaque("device(type='cpu', `0`)")
OPAQUE = {repr(value): value for value in (FLOAT32, DEVICE)}
PREDICATES = {name: Function(name, max) for name in ["broadcasts", "in", "my.pred", "holds"]}
ENVIRONMENT = {"names": OPAQUE.__getitem__, "functions": PREDICATES}

# --- identity ---------------------------------------------------------------------------------

plain_names = st.sampled_from(["x", "y", "y#3", "_#4", "größe", "F", "where_", "info"])
odd_names = st.sampled_from(["where", "exists", "inf", "True", "", "a b", "`", "\\", "x#", "#1"])
any_names = plain_names | odd_names | st.text(max_size=4)
operator_names = any_names | st.sampled_from(["aten.add", "aten.where", "or.and", "a..b", "m::f"])
operators = st.builds(Operator, operator_names)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([FLOAT32, DEVICE, math.inf, -math.inf, math.nan, -0.0, 0.0, -1, 1e16])
    | operators
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=2),
    max_leaves=5,
)
functions = st.sampled_from([*FUNCTIONS.values(), *PREDICATES.values()])
names_lists = st.lists(any_names, max_size=3).map(tuple)
leaves = (
    st.builds(Constant, values)
    | st.builds(Reference, any_names)
    | st.builds(Attribute, any_names, any_names)
)
binary = st.sampled_from(["add", "sub", "mul", "div", "floordiv", "mod", "pow", "in", "item"])


def grow_expression(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    infix = st.builds(Apply, binary.map(FUNCTIONS.__getitem__), st.tuples(inner, inner))
    negated = st.builds(Apply, st.just(FUNCTIONS["neg"]), st.tuples(inner))
    sliced = st.builds(Apply, st.just(FUNCTIONS["slice"]), st.tuples(inner, inner, inner))
    called = st.builds(Apply, functions, st.lists(inner, max_size=3).map(tuple))
    fields = st.dictionaries(any_names.filter(is_field_name), inner, min_size=1, max_size=2)
    records = fields.map(made) | st.builds(selected, inner, any_names)
    tuples = st.builds(Tuple, st.lists(inner).map(tuple))
    return infix | negated | sliced | called | tuples | records


expressions: st.SearchStrategy[Expression] = st.recursive(leaves, grow_expression, max_leaves=6)


def grow_guard(inner: st.SearchStrategy[Guard]) -> st.SearchStrategy[Guard]:
    return st.builds(And, inner, inner) | st.builds(Or, inner, inner) | st.builds(Not, inner)


comparisons = (
    st.builds(Holds, expressions)
    | st.builds(Equal, expressions, expressions)
    | st.builds(Less, expressions, expressions)
)
guards: st.SearchStrategy[Guard] = st.recursive(
    st.just(True_()) | comparisons, grow_guard, max_leaves=4
)
small_guards = st.sampled_from([True_(), Equal(Reference("x"), Constant(1))]) | guards


def grow_pattern(inner: st.SearchStrategy[Pattern]) -> st.SearchStrategy[Pattern]:
    parts = st.lists(inner, max_size=3).map(tuple)
    sets = names_lists.map(frozenset)
    definitions = st.builds(Definition, any_names, names_lists, sets, sets, sets, inner)
    return (
        st.builds(Op, operators, parts, st.booleans())
        | st.builds(Fun, any_names, parts, st.booleans())
        | st.builds(Alt, inner, inner)
        | st.builds(Exists, any_names, inner)
        | st.builds(Guarded, inner, small_guards)
        | st.builds(Let, inner, any_names, expressions)
        | st.builds(Constrained, inner, inner, any_names)
        | st.builds(Mu, definitions, names_lists)
    )


any_patterns: st.SearchStrategy[Pattern] = st.recursive(
    st.builds(Var, any_names) | st.builds(Call, st.integers(0, 4), names_lists),
    grow_pattern,
    max_leaves=8,
)
"""Any values of the types: nothing need make sense."""

MANY = settings(max_examples=100, deadline=None)


def check(value: object, printed: str, parsed: object) -> None:
    """Equal, and also equal to the last sign and type (where == is not enough: 1, 1.0, nan)."""
    assert repr(parsed) == repr(value), printed
    if "nan" not in printed:
        assert parsed == value


def ordered(text: str) -> bool:
    """Whether a repr says all: those of sets differ in order."""
    return "frozenset({" not in text


@MANY
@given(any_patterns)
def test_patterns_survive(pattern: Pattern) -> None:
    text = print_pattern(pattern)
    parsed = parse_pattern(text, **ENVIRONMENT)
    assert print_pattern(parsed) == text
    if "nan" not in text:
        assert parsed == pattern, text
    if ordered(repr(pattern)):
        check(pattern, text, parsed)


@MANY
@given(cases())
def test_meaningful_patterns_survive(case: tuple[Pattern, Term]) -> None:
    pattern, term = case
    assert parse_pattern(print_pattern(pattern)) == pattern
    assert parse_term(print_term(term), TERMS) is term


@MANY
@given(expressions)
def test_expressions_survive(expression: Expression) -> None:
    text = print_expression(expression)
    parsed = parse_expression(text, **ENVIRONMENT)
    assert print_expression(parsed) == text
    if ordered(repr(expression)):
        check(expression, text, parsed)


@MANY
@given(guards)
def test_guards_survive(guard: Guard) -> None:
    text = print_guard(guard)
    parsed = parse_guard(text, **ENVIRONMENT)
    assert print_guard(parsed) == text
    if ordered(repr(guard)):
        check(guard, text, parsed)


@MANY
@given(values)
def test_values_survive(value: object) -> None:
    text = print_value(value)
    parsed = parse_expression(text, **ENVIRONMENT)
    assert isinstance(parsed, Constant)
    assert type(parsed.value) is type(value)
    if ordered(repr(value)):
        assert repr(parsed.value) == repr(value)


@MANY
@given(st.data())
def test_terms_with_any_attributes_survive(data: st.DataObject) -> None:
    operator = data.draw(operators)
    children = data.draw(st.lists(terms(), max_size=2))
    constants = scalars.filter(lambda value: not (isinstance(value, float) and math.isnan(value)))
    attributes = data.draw(st.dictionaries(any_names, constants, max_size=3))
    term = TERMS.make(operator, children, attributes)
    assert parse_term(print_term(term), TERMS, **ENVIRONMENT) is term


templates = st.recursive(
    st.builds(Var, any_names),
    lambda inner: st.builds(
        Build,
        operators,
        st.lists(inner, max_size=2).map(tuple),
        st.lists(st.tuples(any_names, st.integers()), max_size=2).map(tuple),
    ),
    max_leaves=4,
)
rules = st.builds(
    Rule,
    any_names,
    names_lists,
    st.lists(strategies.shapes(fuel=2), min_size=1, max_size=2).map(tuple),
    templates,
    strategies.guards(),
    st.none() | st.text(max_size=3),
    st.booleans(),
    fingerprint=st.text(max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(rules, max_size=3), any_names)
def test_rules_survive(listed: list[Rule], name: str) -> None:
    rule_set = RuleSet(tuple(listed), name)
    parsed = parse_rules(print_rules(rule_set))
    assert parsed == rule_set
    assert [r.replacement for r in parsed] == [r.replacement for r in rule_set]
    for rule in listed:
        assert parse_rule(print_rule(rule)) == rule
        assert parse_template(print_template(rule.replacement)) == rule.replacement


def replace_it(x: object) -> object:
    return x


def test_python_replacements_are_references() -> None:
    rule = Rule("r", ("x",), (Var("x"),), replace_it)
    text = print_rule(rule)
    assert text == f"rule r(x): x => @{__name__}.replace_it"
    found = {f"{__name__}.replace_it": replace_it}
    assert parse_rule(text, names=found.__getitem__).replacement is replace_it
    with pytest.raises(SyntaxDiagnostic, match="unknown name"):
        parse_rule(text)
    with pytest.raises(SyntaxDiagnostic, match="the replacement is not a function"):
        parse_rule(text, names=lambda name: 1)


# --- the syntax itself --------------------------------------------------------------------------

PRINTED = [
    "x",
    "a()",
    "aten.where(c, x, y)",
    "keep f(keep $F(x))",
    "x | y | z",
    "(x | y) | z",
    "f(x | y, exists z. z)",
    "exists x y. f(x, y) | x",
    "(exists x. x) | y",
    "f(x) where x.v == 1 and y.v < 2 or not z.v != 3",
    "f(x) where (x == 1 or y == 2) and (true and z)",
    "(x | y) where x == 1 let z = x.shape[0] with z <= (u | v)",
    "x with x <= (y with y <= z)",
    "x where x.dtype in [@torch.float32, y.dtype]",
    "x let y = (a + b) * c - (d - 1) let z = -x ** -y",
    "x let y = x.shape[1:None][-1] ** 2 let z = (-1) ** 2",
    "x where broadcasts(x.shape, (1, (2,), (), -inf, 'it', True, None))",
    "rec P(x, y; in: x; out: x, y) { g(P^0(x, y)) | rec P() { P^1(x, x) | P^0() }() }(a, b)",
    "rec `in`(x; small: x) { x | `in`^0(x) }(x)",
    "`where` | `y z` | `redraws`",
    "x where y == &aten.relu and z in {1, 2}",
    "^3(x)",
]


@pytest.mark.parametrize("text", PRINTED)
def test_printed_as_read(text: str) -> None:
    assert print_pattern(parse_pattern(text, **ENVIRONMENT)) == text


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("((x))", "x"),
        ("exists x. exists y. (x | (y))", "exists x y. x | y"),
        ("(f(x) where x == 1) let y = (2)", "f(x) where x == 1 let y = 2"),
        ("x where (x.v == (1)) and ((y))", "x where x.v == 1 and y"),
        ("x where not x == y", "x where x != y"),
        ("f( x,# the first\n  y )  # the rest\n", "f(x, y)"),
        ("x let y = (a * b) + c", "x let y = a * b + c"),
        ("exists x.f(x)", "exists x. f(x)"),
    ],
)
def test_as_few_parentheses_as_possible(text: str, printed: str) -> None:
    assert print_pattern(parse_pattern(text)) == printed


def test_reading() -> None:
    x, y, one = Var("x"), Var("y"), Constant(1)
    f = Operator("aten.f")
    assert parse_pattern("aten.f(x, y) | x | y") == Alt(Op(f, (x, y)), Alt(x, y))
    assert parse_pattern("keep $F(x)") == Fun("F", (x,), keep=True)
    guard = Or(And(Equal(Attribute("x", "v"), one), Holds(Reference("y"))), True_())
    assert parse_guard("x.v == 1 and y or true") == guard
    assert parse_guard("1 < x") == Less(one, Reference("x"))
    minus = Apply(FUNCTIONS["sub"], (Reference("x"), one))
    assert parse_expression("x -1") == minus
    assert parse_expression("-1") == Constant(-1)
    assert parse_expression("-(1)") == Apply(FUNCTIONS["neg"], (one,))
    assert parse_expression("[1, x]") == Tuple((one, Reference("x")))
    assert parse_expression("(1, 2)") == Constant((1, 2))
    assert parse_expression("@torch.float32", **ENVIRONMENT) == Constant(FLOAT32)


def test_spans() -> None:
    pattern = parse_pattern("f(x,\n  g(y) where y.v == 1)", file="p.txt")
    assert isinstance(pattern, Op)
    guarded = pattern.arguments[1]
    assert isinstance(guarded, Guarded)
    assert isinstance(guarded.guard, Equal)
    span = guarded.guard.span
    assert span is not None
    assert (span.file, span.line, span.column, span.end_column) == ("p.txt", 2, 13, 21)
    assert span.source_line == "  g(y) where y.v == 1)"
    assert pattern.span is not None
    assert (pattern.span.line, pattern.span.end_line) == (1, 2)


def test_operators_are_resolved() -> None:
    tagged = Operator("my.f", tags=frozenset({"pointwise"}))
    known = {"my.f": tagged}
    pattern = parse_pattern("my.f(x)", operators=known.__getitem__)
    assert isinstance(pattern, Op)
    assert pattern.operator is tagged
    with pytest.raises(SyntaxDiagnostic, match=r"unknown operator `my[.]g`"):
        parse_pattern("my.g(x)", operators=known.__getitem__)


def test_terms_share_with_their_store() -> None:
    store = Terms()
    term = parse_term("f(g(a), g(a)){alpha=1, dims=(0, 1)}", store)
    assert term.children[0] is term.children[1]
    assert dict(term.attributes) == {"alpha": 1, "dims": (0, 1)}
    assert parse_term("g(a())", store) is term.children[0]
    assert print_term(term) == "f(g(a), g(a)){alpha=1, dims=(0, 1)}"


def test_rule_sets_read() -> None:
    found = parse_rules(
        """
        rules fusion {  # in order of priority
          rule relu(x, y) absorb 'pointwise' redraws fingerprint 'v1':
            f(x), g(y) where y.v == 1 if x.v < 2 => aten.mul(x, y){alpha=1}
          rule drop(x): h(x) => x
        }
        """
    )
    assert [rule.name for rule in found] == ["relu", "drop"]
    first = found.rules[0]
    assert first.parameters == ("x", "y")
    assert (first.absorb, first.redraws, first.fingerprint) == ("pointwise", True, "v1")
    assert first.roots == (parse_pattern("f(x)"), parse_pattern("g(y) where y.v == 1"))
    assert first.guard == parse_guard("x.v < 2")
    assert first.replacement == Build(Operator("aten.mul"), (Var("x"), Var("y")), (("alpha", 1),))
    assert found.rules[1].replacement == Var("x")
    assert not found.rules[1].redraws
    assert found.name == "fusion"


def test_what_a_rule_communicates_is_read_as_printed() -> None:
    for option, communicates in (
        ("", False),
        (" communicates", True),
        (" communicates 'together'", "together"),
    ):
        text = f"rule r(x){option}: f(x) => x"
        assert parse_rule(text).communicates == communicates
        assert print_rule(parse_rule(text)) == text
    with pytest.raises(SyntaxDiagnostic, match="a rule does not communicate 'apart'") as raised:
        parse_rule("rule r(x) communicates 'apart': f(x) => x")
    assert "write `communicates` or `communicates 'together'`" in str(raised.value)


def test_long_alternatives() -> None:
    pattern: Pattern = Var("x")
    for _ in range(300):
        pattern = Alt(Var("y"), pattern)
    assert parse_pattern(print_pattern(pattern)) == pattern


# --- errors -------------------------------------------------------------------------------------

ERRORS = {
    "f(x": (1, 4, "the text ends too early", "expected `)` or `,`"),
    "": (1, 1, "the text ends too early", "expected `$`, `(`"),
    "f(x))": (1, 5, "unexpected `)`", "expected the end"),
    "f(x) ! y": (1, 6, "unexpected `!`", "`where`, `with`, `|` or the end"),
    "f(x,\n  exists)": (2, 9, "unexpected `)`", "expected a name"),
    "rec P(x { y }": (1, 9, "unexpected `{`", "expected `)`, `,` or `;`"),
    "x where\n  x.a ==": (2, 9, "the text ends too early", "a name, a number or a string"),
    "x with y = z": (1, 10, "unexpected `=`", "expected `<=`"),
    "rec P(x) { Q^0(x) }(x)": (1, 12, "no recursive pattern `Q` is number 0", "called here"),
    "rec P(x) { P^1(x) }(x)": (1, 12, "no recursive pattern `P` is number 1", "called here"),
    "P^0(x)": (1, 1, "no recursive pattern `P` is number 0", "called here"),
    "rec P(x) { P^-1(x) }(x)": (1, 12, "counted by whole numbers", "not by -1"),
    "x where lem(x) == 1": (1, 9, "unknown function `lem`", "called here"),
    "x where (a == b) == c": (1, 10, "a guard stands where a value is expected", "not a value"),
    "x let y = not z": (1, 11, "a guard stands where a value is expected", "not a value"),
    "x where x == @torch.nope": (1, 15, "unknown name `torch.nope`", "looked up here"),
    "x where 'a": (1, 9, "unexpected `'`", "expected"),
}  # fmt: skip


@pytest.mark.parametrize("text", ERRORS)
def test_errors(text: str) -> None:
    line, column, message, label = ERRORS[text]
    with pytest.raises(SyntaxDiagnostic) as caught:
        parse_pattern(text)
    found = caught.value.diagnostic
    assert message in found.message
    assert label in found.label
    assert found.help
    assert found.span is not None
    assert (found.span.line, found.span.column + 1) == (line, column)
    assert found.span.source_line == text.split("\n")[line - 1]


def test_error_renders() -> None:
    with pytest.raises(SyntaxDiagnostic) as caught:
        parse_pattern("f(x,\n  y where len2(x) == 1)", file="rules.txt")
    assert str(caught.value).splitlines() == [
        "error: unknown function `len2`",
        " --> rules.txt:2:11",
        "  |",
        "2 |   y where len2(x) == 1)",
        "  |           ^^^^^^^ called here",
        "  = help: did you mean `len`?",
    ]


def test_keyword_as_a_name_is_explained() -> None:
    with pytest.raises(SyntaxDiagnostic) as caught:
        parse_pattern("f(rec, x)")
    assert parse_pattern("f(`rec`)") == Op(Operator("f"), (Var("rec"),))
    assert "backquotes" in caught.value.diagnostic.help
