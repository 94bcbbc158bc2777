"""The reference machine: one branch for each transition of the calculus (section 4).

Names are mapped to locations by environments, locations to values by the store; so no name is
ever renamed or captured. Nothing here is meant to be fast; everything is a value to be printed
and compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeAlias, assert_never

from pypm.core.guards import Expression, Guard, Lookup, evaluate, holds
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
    arg,
)
from pypm.core.printing import print_expression, print_guard, print_pattern, print_term
from pypm.core.terms import UNDEFINED, Term, Value, same
from pypm.diagnostics import BudgetError, Diagnostic

__all__ = [
    "BUDGET",
    "EMPTY",
    "FREE",
    "Action",
    "CheckAction",
    "Configuration",
    "ConstraintAction",
    "Environment",
    "GuardAction",
    "LetAction",
    "Location",
    "MatchAction",
    "State",
    "Store",
    "answers",
    "expand",
    "first",
    "init",
    "is_success",
    "run",
    "search",
    "step",
    "theta",
]

BUDGET: Final = 1_000_000
"""The default budget: the number of steps of a search."""

Location: TypeAlias = str | int
"""A location: free(x), written as the name x itself, or a number."""


@dataclass(frozen=True, slots=True)
class Store:
    """sigma: the next fresh location, and the values bound so far."""

    next: int = 0
    values: Mapping[Location, Value] = field(default_factory=lambda: MappingProxyType({}))

    def get(self, location: Location) -> Value:
        """Return the value at a location, or UNDEFINED."""
        return self.values.get(location, UNDEFINED)

    def set(self, location: Location, value: Value) -> Store:
        return Store(self.next, MappingProxyType({**self.values, location: value}))

    def __str__(self) -> str:
        return "{" + ", ".join(f"{at}={value!r}" for at, value in self.values.items()) + "}"


@dataclass(frozen=True, slots=True)
class Environment:
    """rho: a partial map from names to locations.

    If it is `open`, names not listed are their own locations: rho_0 is open and lists none.
    """

    names: Mapping[str, Location] = field(default_factory=lambda: MappingProxyType({}))
    open: bool = False

    def get(self, name: str) -> Location | None:
        return self.names.get(name, name if self.open else None)

    def set(self, name: str, location: Location) -> Environment:
        """Return rho[x -> l]."""
        return Environment(MappingProxyType({**self.names, name: location}), self.open)

    def call(self, definition: Definition, actuals: tuple[str, ...]) -> Environment:
        """Return callenv(x, y, rho): the environment of a body, entered with these actuals."""
        names: dict[str, Location] = {}
        for parameter in definition.parameters:
            actual = arg(definition.parameters, actuals, parameter)
            location = None if actual is None else self.get(actual)
            if location is not None:
                names[parameter] = location
        return Environment(MappingProxyType(names))

    def __str__(self) -> str:
        listed = [f"{name}@{location}" for name, location in self.names.items()]
        return "[" + ", ".join(listed + ["..."] * self.open) + "]"


EMPTY: Final = Store()
FREE: Final = Environment(open=True)
"""rho_0: every name is its own location."""


@dataclass(frozen=True, slots=True)
class MatchAction:
    """match(R, rho, p, t)."""

    context: Context
    environment: Environment
    pattern: Pattern
    term: Term

    def __str__(self) -> str:
        pattern = print_pattern(self.pattern, self.context)
        return f"match({pattern} at {print_term(self.term)} {self.environment})"


@dataclass(frozen=True, slots=True)
class GuardAction:
    """guard(rho, g)."""

    environment: Environment
    guard: Guard

    def __str__(self) -> str:
        return f"guard({print_guard(self.guard)} {self.environment})"


@dataclass(frozen=True, slots=True)
class CheckAction:
    """check(l)."""

    location: Location

    def __str__(self) -> str:
        return f"check({self.location})"


@dataclass(frozen=True, slots=True)
class ConstraintAction:
    """matchC(R, rho, p, x)."""

    context: Context
    environment: Environment
    pattern: Pattern
    name: str

    def __str__(self) -> str:
        pattern = print_pattern(self.pattern, self.context)
        return f"matchC({self.name} <= {pattern} {self.environment})"


@dataclass(frozen=True, slots=True)
class LetAction:
    """let(rho, x, e)."""

    environment: Environment
    name: str
    expression: Expression

    def __str__(self) -> str:
        return f"let({self.name} = {print_expression(self.expression)} {self.environment})"


Action: TypeAlias = MatchAction | GuardAction | CheckAction | ConstraintAction | LetAction


@dataclass(frozen=True, slots=True)
class Configuration:
    """(sigma, k): a store and the remaining actions; a success if there are none."""

    store: Store
    actions: tuple[Action, ...]

    def __str__(self) -> str:
        return " :: ".join([str(self.store), *map(str, self.actions)])


State: TypeAlias = tuple[Configuration, ...]
"""A stack of configurations, the next one first; the empty stack is failure."""


def init(patterns: Pattern | Sequence[Pattern], terms: Term | Sequence[Term]) -> State:
    """Return init p t of section 4; several patterns are matched in order under one rho_0."""
    several = tuple(patterns) if isinstance(patterns, Sequence) else (patterns,)
    subjects = tuple(terms) if isinstance(terms, Sequence) else (terms,)
    return (Configuration(EMPTY, _matches((), FREE, several, subjects)),)


def is_success(state: State) -> bool:
    """Return whether the head of a state has no actions left."""
    return bool(state) and not state[0].actions


def step(state: State) -> State:
    """Return the one successor of a running state (theorem T1)."""
    head, *stack = state
    return (*expand(head), *stack)


def expand(configuration: Configuration) -> list[Configuration]:
    """Return the configurations that replace a running one: none, one or two, in order."""
    store = configuration.store
    action, rest = configuration.actions[0], configuration.actions[1:]
    match action:
        case MatchAction():
            return _expand_match(store, action, rest)
        case GuardAction(environment, guard):
            passes = holds(guard, _lookup(environment, store)) is True
            return [Configuration(store, rest)] if passes else []
        case LetAction(environment, name, expression):
            value = evaluate(expression, _lookup(environment, store))
            return _bind(store, environment.get(name), value, rest)
        case CheckAction(location):
            return [] if store.get(location) is UNDEFINED else [Configuration(store, rest)]
        case ConstraintAction(context, environment, pattern, name):
            value = _lookup(environment, store)(name)
            if not isinstance(value, Term):
                return []
            inner = MatchAction(context, environment, pattern, value)
            return [Configuration(store, (inner, *rest))]
        case _:
            assert_never(action)


def _expand_match(
    store: Store, action: MatchAction, rest: tuple[Action, ...]
) -> list[Configuration]:
    """Return the transition of match(R, rho, p, t), one for each form of pattern."""
    context, environment, term = action.context, action.environment, action.term
    match action.pattern:
        case Var(name):  # match x
            return _bind(store, environment.get(name), term, rest)
        case Op(operator, parts):  # match f(p)
            if operator != term.operator or len(parts) != len(term.children):
                return []
            inside = _matches(context, environment, parts, term.children)
            return [Configuration(store, inside + rest)]
        case Fun(name, parts):  # match F(p): F is bound before the children
            if len(parts) != len(term.children):
                return []
            inside = _matches(context, environment, parts, term.children)
            return _bind(store, environment.get(name), term.operator, inside + rest)
        case Alt(left, right):  # match p|q
            return [
                Configuration(store, (MatchAction(context, environment, alternate, term), *rest))
                for alternate in (left, right)
            ]
        case Exists(name, body):  # match exists x. p
            fresh = store.next
            inner = MatchAction(context, environment.set(name, fresh), body, term)
            allocated = Store(fresh + 1, store.values)
            return [Configuration(allocated, (inner, CheckAction(fresh), *rest))]
        case Guarded(body, guard):  # match p;guard(g)
            inner = MatchAction(context, environment, body, term)
            return [Configuration(store, (inner, GuardAction(environment, guard), *rest))]
        case Let(body, name, expression):  # match p;let(x=e)
            inner = MatchAction(context, environment, body, term)
            return [Configuration(store, (inner, LetAction(environment, name, expression), *rest))]
        case Constrained(body, pattern, name):  # match p;(p'<=x)
            inner = MatchAction(context, environment, body, term)
            later = ConstraintAction(context, environment, pattern, name)
            return [Configuration(store, (inner, later, *rest))]
        case Mu(definition, actuals):  # match mu
            return [_enter((definition, *context), environment, actuals, term, store, rest)]
        case Call(index, actuals):  # match call_i
            if index >= len(context):
                return []
            return [_enter(context[index:], environment, actuals, term, store, rest)]
        case _:
            assert_never(action.pattern)


def _matches(
    context: Context,
    environment: Environment,
    patterns: tuple[Pattern, ...],
    terms: tuple[Term, ...],
) -> tuple[Action, ...]:
    """Return match p_1 t_1 :: ... :: match p_n t_n."""
    return tuple(
        MatchAction(context, environment, pattern, term)
        for pattern, term in zip(patterns, terms, strict=True)
    )


def _enter(
    context: Context,
    environment: Environment,
    actuals: tuple[str, ...],
    term: Term,
    store: Store,
    rest: tuple[Action, ...],
) -> Configuration:
    """Return the configuration that matches the body of the innermost definition of a context."""
    definition = context[0]
    inside = environment.call(definition, actuals)
    return Configuration(store, (MatchAction(context, inside, definition.body, term), *rest))


def _bind(
    store: Store, location: Location | None, value: Value, rest: tuple[Action, ...]
) -> list[Configuration]:
    """Return the configuration in which a location holds the value; none if it holds another."""
    if location is None or value is UNDEFINED:
        return []
    known = store.get(location)
    if known is UNDEFINED:
        return [Configuration(store.set(location, value), rest)]
    return [Configuration(store, rest)] if same(known, value) else []


def _lookup(environment: Environment, store: Store) -> Lookup:
    """Return a function from a name to its value: sigma after rho."""

    def value(name: str) -> Value:
        location = environment.get(name)
        return UNDEFINED if location is None else store.get(location)

    return value


def theta(store: Store) -> dict[str, Value]:
    """Return theta_sigma: the values of the free names, in the order in which they were bound."""
    return {at: value for at, value in store.values.items() if isinstance(at, str)}


def run(state: State, budget: int = BUDGET) -> State:
    """Step until success or failure, and return that state.

    Raises BudgetError after `budget` steps.
    """
    end, _ = _run(state, budget)
    return end


def _run(state: State, budget: int) -> tuple[State, int]:
    """Return the success or failure that a state leads to, and the remaining steps."""
    while state and not is_success(state):
        if budget <= 0:
            raise BudgetError(
                Diagnostic(
                    "matching did not end within its budget of steps",
                    help="raise the budget, or check the pattern with "
                    "`pypm.core.guarded.check_guarded`",
                )
            )
        state = step(state)
        budget -= 1
    return state, budget


def search(
    patterns: Pattern | Sequence[Pattern],
    terms: Term | Sequence[Term],
    budget: int = BUDGET,
) -> Iterator[Store]:
    """Yield the stores of all successes, in order, with duplicates (the relation of section 4).

    `budget` bounds the steps of the whole search. Raises BudgetError when it is used up.
    """
    state, left = _run(init(patterns, terms), budget)
    while state:
        yield state[0].store
        state, left = _run(state[1:], left)


def answers(
    patterns: Pattern | Sequence[Pattern],
    terms: Term | Sequence[Term],
    budget: int = BUDGET,
) -> list[dict[str, Value]]:
    """Return all answers, in order, with duplicates: the values of the free names.

    Raises BudgetError if the search takes more than `budget` steps.
    """
    return [theta(store) for store in search(patterns, terms, budget)]


def first(
    patterns: Pattern | Sequence[Pattern],
    terms: Term | Sequence[Term],
    budget: int = BUDGET,
) -> dict[str, Value] | None:
    """Return the first answer, or None if there is none.

    Raises BudgetError if the search takes more than `budget` steps.
    """
    state = run(init(patterns, terms), budget)
    return theta(state[0].store) if state else None
