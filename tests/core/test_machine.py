"""The reference machine: the table, its transitions, and its theorems against brute force."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings

from pypm.core.guarded import is_guarded
from pypm.core.machine import (
    FREE,
    CheckAction,
    Configuration,
    ConstraintAction,
    GuardAction,
    LetAction,
    MatchAction,
    Store,
    answers,
    expand,
    first,
    init,
    is_success,
    run,
    search,
    step,
    theta,
)
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
from pypm.core.terms import Term, Terms, Value, same
from pypm.core.text import parse_expression, parse_guard, parse_pattern, parse_term
from pypm.core.traverse import free_names
from pypm.core.wellformed import bound_after, is_wellformed
from pypm.diagnostics import BudgetError
from tests.core.declarative import is_match, matches, universe
from tests.core.strategies import cases
from tests.core.table import TABLE, Case

BUDGET = 20_000
"""More steps than a terminating search of a small random case takes."""


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_table(case: Case) -> None:
    patterns, subjects, expected = case.read()
    assert answers(patterns, subjects, BUDGET) == expected
    assert first(patterns, subjects, BUDGET) == (expected[0] if expected else None)


@pytest.mark.parametrize("case", [c for c in TABLE if len(c.patterns) == 1], ids=str)
def test_table_is_declarative(case: Case) -> None:
    """Each answer in the table is a match, and a well-formed case without any has none."""
    (pattern,), (subject,), expected = case.read()
    values = [*universe(pattern, subject), 2]
    assert all(is_match(pattern, answer, subject, values) for answer in expected)
    if not expected and is_wellformed(pattern):
        assert not list(matches(pattern, free_names(pattern), subject, values))


TERMS = Terms()
A, GA, FAB = (parse_term(text, TERMS) for text in ["a{v=1}", "g(a{v=1})", "f(a{v=1}, b)"])
REST = CheckAction("rest")


def matching(pattern: str, term: Term) -> MatchAction:
    return MatchAction((), FREE, parse_pattern(pattern), term)


def stored(**values: Value) -> Store:
    return Store(0, values)


LOCAL = FREE.set("x", 0)
P = parse_pattern("rec P(x) { g(P^0(x)) | x }(y)")
assert isinstance(P, Mu)
INSIDE = FREE.call(P.definition, ("y",))
CALL = MatchAction((P.definition,), FREE, Call(0, ("y",)), A)
TRANSITIONS = {
    "match x, unbound": (stored(), matching("x", A), [(stored(x=A), [])]),
    "match x, equal": (stored(x=A), matching("x", A), [(stored(x=A), [])]),
    "match x, other": (stored(x=GA), matching("x", A), []),
    "match x, no location": (stored(), MatchAction((), INSIDE, Var("z"), A), []),
    "match f(p)": (
        stored(),
        matching("f(x, y)", FAB),
        [(stored(), [matching("x", A), matching("y", FAB.children[1])])],
    ),
    "match f(p), other operator": (stored(), matching("h(x)", GA), []),
    "match f(p), other length": (stored(), matching("f(x)", FAB), []),
    "match F(p)": (stored(), matching("$F(x)", GA), [(stored(F=GA.operator), [matching("x", A)])]),
    "match F(p), other operator": (stored(F=FAB.operator), matching("$F(x)", GA), []),
    "match F(p), other length": (stored(), matching("$F(x)", FAB), []),
    "match p|q": (
        stored(),
        matching("x | y", A),
        [(stored(), [matching("x", A)]), (stored(), [matching("y", A)])],
    ),
    "match exists": (
        Store(0, {}),
        matching("exists x. x", A),
        [(Store(1, {}), [MatchAction((), LOCAL, Var("x"), A), CheckAction(0)])],
    ),
    "match guard": (
        stored(),
        matching("x where x.v == 1", A),
        [(stored(), [matching("x", A), GuardAction(FREE, parse_guard("x.v == 1"))])],
    ),
    "match let": (
        stored(),
        matching("x let y = x.v", A),
        [(stored(), [matching("x", A), LetAction(FREE, "y", parse_expression("x.v"))])],
    ),
    "match constraint": (
        stored(),
        matching("x with x <= y", A),
        [(stored(), [matching("x", A), ConstraintAction((), FREE, Var("y"), "x")])],
    ),
    "match mu": (
        stored(),
        MatchAction((), FREE, P, A),
        [(stored(), [MatchAction((P.definition,), INSIDE, P.definition.body, A)])],
    ),
    "match call": (
        stored(),
        CALL,
        [(stored(), [MatchAction((P.definition,), INSIDE, P.definition.body, A)])],
    ),
    "match call, of nothing": (stored(), matching("^0(y)", A), []),
    "guard, true": (stored(x=A), GuardAction(FREE, parse_guard("x.v == 1")), [(stored(x=A), [])]),
    "guard, false": (stored(x=A), GuardAction(FREE, parse_guard("x.v == 2")), []),
    "guard, unknown": (stored(), GuardAction(FREE, parse_guard("x.v == 1")), []),
    "let, unbound": (
        stored(),
        LetAction(FREE, "y", parse_expression("1")),
        [(stored(y=1), [])],
    ),
    "let, equal": (
        stored(y=1),
        LetAction(FREE, "y", parse_expression("1")),
        [(stored(y=1), [])],
    ),
    "let, other": (stored(y=2), LetAction(FREE, "y", parse_expression("1")), []),
    "let, undefined": (stored(), LetAction(FREE, "y", parse_expression("x")), []),
    "check, bound": (stored(x=A), CheckAction("x"), [(stored(x=A), [])]),
    "check, unbound": (stored(), CheckAction("x"), []),
    "constraint, a term": (
        stored(x=A),
        ConstraintAction((), FREE, Var("y"), "x"),
        [(stored(x=A), [matching("y", A)])],
    ),
    "constraint, no term": (stored(x=1), ConstraintAction((), FREE, Var("y"), "x"), []),
    "constraint, unbound": (stored(), ConstraintAction((), FREE, Var("y"), "x"), []),
}


@pytest.mark.parametrize("name", TRANSITIONS)
def test_transition(name: str) -> None:
    """One row for each row of section 4, before an action that stays where it is."""
    store, action, expected = TRANSITIONS[name]
    after = expand(Configuration(store, (action, REST)))
    assert after == [Configuration(s, (*actions, REST)) for s, actions in expected]


def test_step_expands_the_head_and_keeps_the_stack() -> None:
    state = step(init(parse_pattern("x | y"), A))
    assert [c.actions for c in state] == [(matching("x", A),), (matching("y", A),)]
    state = step(state)
    assert is_success(state)
    assert len(state) == 2
    assert state[1].actions == (matching("y", A),)


def test_failure_is_the_empty_state() -> None:
    state = run(init(parse_pattern("b()"), A))
    assert state == ()
    assert not is_success(state)


def test_states_print() -> None:
    state = init(parse_pattern("exists x. g(x) where x.v == 1 let y = x.v with y <= z"), GA)
    for _ in range(4):
        state = step(state)
    printed = [str(configuration) for configuration in state]
    assert printed == [
        "{} :: match(g(x) at g(a{v=1}) [x@0, ...]) :: guard(x.v == 1 [x@0, ...])"
        " :: let(y = x.v [x@0, ...]) :: matchC(y <= z [x@0, ...]) :: check(0)"
    ]


def test_budget_is_exact() -> None:
    pattern, steps = parse_pattern("f(x, y)"), 3
    assert answers(pattern, FAB, steps) == [{"x": A, "y": FAB.children[1]}]
    with pytest.raises(BudgetError, match="did not end within its budget"):
        answers(pattern, FAB, steps - 1)
    with pytest.raises(BudgetError):
        first(pattern, FAB, steps - 1)


def test_roots_and_subjects_go_together() -> None:
    with pytest.raises(ValueError, match="shorter"):
        init([Var("x"), Var("y")], [A])


def test_deep_alternatives() -> None:
    pattern: Pattern = Var("x")
    for _ in range(300):
        pattern = Alt(parse_pattern("b()"), pattern)
    assert answers(pattern, A) == [{"x": A}]


# --- theorems ---------------------------------------------------------------------------------


def sub_of(answer: dict[str, Value], other: dict[str, Value]) -> bool:
    return all(name in other and same(value, other[name]) for name, value in answer.items())


SMALL = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@SMALL
@given(cases())
def test_searches(case: tuple[Pattern, Term]) -> None:
    """T1: a running state has one successor, and printing it changes nothing; under guardedness,
    T4: no BudgetError; T5: the first success is the first answer; T2, of any pattern: answers are
    matches; and under wf the definitely bound names are bound.
    """
    pattern, term = case
    state = init(pattern, term)
    for _ in range(12):
        if not state or is_success(state):
            break
        assert step(state) == step(state)
        assert all(str(configuration) for configuration in state)
        state = step(state)
    assume(is_guarded(pattern))
    every = answers(pattern, term, BUDGET)
    assert first(pattern, term, BUDGET) == (every[0] if every else None)
    bound = bound_after(pattern) if is_wellformed(pattern) else frozenset()
    for store in search(pattern, term, BUDGET):
        values = [*universe(pattern, term), *store.values.values()]
        assert is_match(pattern, theta(store), term, values)
        assert bound & free_names(pattern) <= theta(store).keys()


@SMALL
@given(cases(max_leaves=3, fuel=3))
def test_answers_are_all_matches(case: tuple[Pattern, Term]) -> None:
    """T3 and T5: under wf, theta is a match exactly if it extends an answer."""
    pattern, term = case
    names = sorted(free_names(pattern))
    values = universe(pattern, term)
    assume(is_guarded(pattern) and is_wellformed(pattern))
    assume(len(values) ** (len(names) + locals_in(pattern)) <= 5000)
    every = answers(pattern, term, BUDGET)
    for found in matches(pattern, names, term, values):
        assert any(sub_of(answer, dict(found)) for answer in every), found


def locals_in(pattern: Pattern) -> int:
    """How many local names can be in scope at once, with recursive patterns entered twice."""
    match pattern:
        case Var() | Call():
            return 0
        case Op(_, parts) | Fun(_, parts):
            return max(map(locals_in, parts), default=0)
        case Alt(left, right):
            return max(locals_in(left), locals_in(right))
        case Exists(_, body):
            return 1 + locals_in(body)
        case Guarded(body) | Let(body):
            return locals_in(body)
        case Constrained(body, constraint):
            return max(locals_in(body), locals_in(constraint))
        case Mu(definition):
            return 2 * locals_in(definition.body)


def _good(pattern: Pattern) -> bool:
    return is_guarded(pattern) and is_wellformed(pattern)


def forms_in(pattern: Pattern) -> set[type]:
    match pattern:
        case Var() | Call():
            inner: list[Pattern] = []
        case Op(_, parts) | Fun(_, parts):
            inner = list(parts)
        case Alt(left, right) | Constrained(left, right):
            inner = [left, right]
        case Exists(_, body) | Guarded(body) | Let(body):
            inner = [body]
        case Mu(definition):
            inner = [definition.body]
    return {type(pattern)}.union(*map(forms_in, inner))


def depth_of(pattern: Pattern, term: Term) -> int:
    """How many recursive patterns are around the deepest action on the way to the first answer."""
    state, depth = init(pattern, term), 0
    while state and not is_success(state):
        head = state[0].actions[0]
        depth += isinstance(head, MatchAction) and isinstance(head.pattern, Mu | Call)
        state = step(state)
    return depth


@pytest.mark.parametrize(
    ("drawn", "least"), [(400, 4), pytest.param(800, 8, marks=pytest.mark.soak)]
)
def test_strategies_reach_everything(drawn: int, least: int) -> None:
    """The properties above are not vacuous: every form is drawn often where it matches."""
    seen: Counter[object] = Counter()

    @settings(SMALL, max_examples=drawn, database=None, derandomize=True, phases=[Phase.generate])
    @given(cases())
    def draw(case: tuple[Pattern, Term]) -> None:
        pattern, term = case
        good = is_guarded(pattern) and is_wellformed(pattern)
        seen["refused"] += not good
        every = answers(pattern, term, BUDGET) if good else []
        seen["several"] += len(every) > 1
        if every:
            seen.update(forms_in(pattern))
            seen["deep"] += depth_of(pattern, term) > 2
        seen["none"] += good and not every

    draw()
    wanted = [Var, Op, Fun, Alt, Exists, Guarded, Let, Constrained, Mu, Call]
    assert [form for form in [*wanted, "refused", "several", "none"] if seen[form] < least] == []
    assert seen["deep"] > 0
