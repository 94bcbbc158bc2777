"""A bug planted in each transition of the Python machine is caught by comparing with the oracle.

The machine's source is changed in one place, in memory, and the mutant put to random pairs until
its answers, or the states it goes through, differ from those of the extracted machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from types import ModuleType

from pypm.core import machine
from tests.properties.engines import Search, search
from tests.properties.generate import Case, cases
from tests.properties.oracle import as_text, ask, names_in, require_oracle, shown_answers

PAIRS = 4_000
STEPS = 200
SOURCE = Path(machine.__file__).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Bug:
    """Where it is, what it does, and the text of the machine that makes it."""

    transition: str
    does: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.transition}: {self.does}"


BUGS = [
    Bug("match x", "binds again instead of comparing",
        "return [Configuration(store, rest)] if same(known, value) else []",
        "return [Configuration(store.set(location, value), rest)]"),
    Bug("match x", "never finds equal what is bound",
        "if same(known, value) else []", "if False else []"),
    Bug("match x", "goes on without binding",
        "return [Configuration(store.set(location, value), rest)]",
        "return [Configuration(store, rest)]"),
    Bug("match x", "goes on where the name has no location",
        "    if location is None or value is UNDEFINED:\n        return []\n",
        "    if value is UNDEFINED:\n        return []\n"
        "    if location is None:\n        return [Configuration(store, rest)]\n"),
    Bug("match f(p)", "takes any operator", "operator != term.operator or len", "len"),
    Bug("match f(p)", "takes any number of children",
        "if operator != term.operator or len(parts) != len(term.children):",
        "if operator != term.operator:"),
    Bug("match f(p)", "matches children from the last",
        "inside = _matches(context, environment, parts, term.children)\n"
        "            return [Configuration(store, inside + rest)]",
        "inside = _matches(context, environment, parts, term.children)[::-1]\n"
        "            return [Configuration(store, inside + rest)]"),
    Bug("match f(p)", "matches children after what remains", "inside + rest)]", "rest + inside)]"),
    Bug("match F(p)", "does not bind F",
        "return _bind(store, environment.get(name), term.operator, inside + rest)",
        "return [Configuration(store, inside + rest)]"),
    Bug("match F(p)", "takes any number of children",
        "            if len(parts) != len(term.children):\n                return []\n"
        "            inside = _matches(context, environment, parts, term.children)\n"
        "            return _bind",
        "            inside = _matches(context, environment, parts, term.children)\n"
        "            return _bind"),
    Bug("match p|q", "takes the right side first", "in (left, right)\n", "in (right, left)\n"),
    Bug("match p|q", "commits to the left side", "in (left, right)\n", "in (left,)\n"),
    Bug("match exists", "uses the outer location",
        "environment.set(name, fresh)", "environment"),
    Bug("match exists", "does not allocate", "Store(fresh + 1, store.values)", "store"),
    Bug("match exists", "does not check", "(inner, CheckAction(fresh), *rest)", "(inner, *rest)"),
    Bug("match exists", "checks last", "(inner, CheckAction(fresh), *rest)",
        "(inner, *rest, CheckAction(fresh))"),
    Bug("match guard", "drops the guard",
        "(inner, GuardAction(environment, guard), *rest)", "(inner, *rest)"),
    Bug("match guard", "tests before matching",
        "(inner, GuardAction(environment, guard), *rest)",
        "(GuardAction(environment, guard), inner, *rest)"),
    Bug("match let", "drops the let",
        "(inner, LetAction(environment, name, expression), *rest)", "(inner, *rest)"),
    Bug("match constraint", "drops the constraint", "(inner, later, *rest)", "(inner, *rest)"),
    Bug("match constraint", "is tried last", "(inner, later, *rest)", "(inner, *rest, later)"),
    Bug("match mu", "does not enter its definition",
        "_enter((definition, *context)", "_enter((definition,)"),
    Bug("match mu", "keeps the outer environment",
        "    inside = environment.call(definition, actuals)\n", "    inside = environment\n"),
    Bug("match mu", "pairs actuals with parameters from the last",
        "arg(definition.parameters, actuals, parameter)",
        "arg(definition.parameters, actuals[::-1], parameter)"),
    Bug("match mu", "sees free names in its body",
        "        return Environment(MappingProxyType(names))\n",
        "        return Environment(MappingProxyType(names), self.open)\n"),
    Bug("match call", "goes on where nothing is called",
        "            if index >= len(context):\n                return []\n",
        "            if index >= len(context):\n"
        "                return [Configuration(store, rest)]\n"),
    Bug("match call", "always calls the innermost",
        "_enter(context[index:], environment", "_enter(context, environment"),
    Bug("match call", "leaves the inner definitions in place",
        "_enter(context[index:], environment, actuals, term, store, rest)",
        "_enter((context[index], *context), environment, actuals, term, store, rest)"),
    Bug("guard", "lets the unknown pass",
        "holds(guard, _lookup(environment, store)) is True",
        "holds(guard, _lookup(environment, store)) is not False"),
    Bug("guard", "always passes", "[Configuration(store, rest)] if passes else []",
        "[Configuration(store, rest)]"),
    Bug("let", "overwrites",
        "return _bind(store, environment.get(name), value, rest)\n        case CheckAction",
        "return [Configuration(store.set(environment.get(name), value), rest)]\n"
        "        case CheckAction"),
    Bug("let", "goes on where the expression is undefined",
        "    if location is None or value is UNDEFINED:\n        return []\n",
        "    if location is None:\n        return []\n"
        "    if value is UNDEFINED:\n        return [Configuration(store, rest)]\n"),
    Bug("check", "always passes",
        "[] if store.get(location) is UNDEFINED else [Configuration(store, rest)]",
        "[Configuration(store, rest)]"),
    Bug("check", "is inverted",
        "[] if store.get(location) is UNDEFINED else [Configuration(store, rest)]",
        "[Configuration(store, rest)] if store.get(location) is UNDEFINED else []"),
    Bug("constraint", "ignores what is no term",
        "            if not isinstance(value, Term):\n                return []\n",
        "            if not isinstance(value, Term):\n"
        "                return [Configuration(store, rest)]\n"),
    Bug("constraint", "comes after what remains", "(inner, *rest))]\n        case _:",
        "(*rest, inner))]\n        case _:"),
    Bug("constraint", "is taken outside its recursive patterns",
        "inner = MatchAction(context, environment, pattern, value)",
        "inner = MatchAction(context[1:], environment, pattern, value)"),
    Bug("step", "searches breadth first", "(*expand(head), *stack)", "(*stack, *expand(head))"),
    Bug("roots", "does not match the first one first",
        "_matches((), FREE, several, subjects)", "_matches((), FREE, several, subjects)[::-1]"),
]  # fmt: skip

TRANSITIONS = {
    "match x",
    "match f(p)",
    "match F(p)",
    "match p|q",
    "match exists",
    "match guard",
    "match let",
    "match constraint",
    "match mu",
    "match call",
    "guard",
    "let",
    "check",
    "constraint",
}


def test_every_transition_has_a_bug() -> None:
    assert {bug.transition for bug in BUGS} >= TRANSITIONS


@contextmanager
def planted(bug: Bug) -> Iterator[ModuleType]:
    """The machine with a bug."""
    assert SOURCE.count(bug.old) == 1, bug
    mutant = ModuleType("pypm.core.mutant")
    sys.modules[mutant.__name__] = mutant
    try:
        exec(compile(SOURCE.replace(bug.old, bug.new), f"<{bug}>", "exec"), mutant.__dict__)
        yield mutant
    finally:
        del sys.modules[mutant.__name__]


@cache
def truth() -> list[tuple[Case, str, str]]:
    """Pairs with the answers and the steps that the extracted machine has."""
    pairs = cases("planted bugs", PAIRS)
    queries = []
    for case in pairs:
        text = as_text(case.patterns, case.terms)
        names = " ".join(sorted(set().union(*map(names_in, case.patterns))))
        queries += [f"run\t{STEPS}\t{text}", f"steps\t30\t{names}\t{text}"]
    replies = ask(queries)
    return list(zip(pairs, replies[::2], replies[1::2], strict=True))


def caught(module: ModuleType) -> tuple[int | None, int | None]:
    """How many pairs it takes until the answers, and the states, are seen to be wrong."""
    by_answers = by_states = None
    for number, (case, run, steps) in zip(count(1), truth()):
        setup = len(case.patterns) > 1
        expected = steps.split("\t")[setup:]
        try:
            found = search(case, module, STEPS, 30 - setup)
        except Exception:  # a mutant may go wrong in any way
            found = Search([], 0, True, [])
            run = "nothing of this kind"
        if by_states is None and found.became != expected:
            by_states = number
        shown = shown_answers(map(module.theta, found.stores)) if found.ended else "timeout"
        fuel = found.steps + len(found.stores) + setup + 1
        if (shown if fuel <= STEPS else "timeout") != run:
            by_answers = number
        if by_answers is not None:
            break
    return by_answers, by_states


def test_the_machine_itself_is_not_caught() -> None:
    require_oracle()
    assert caught(machine) == (None, None)


def test_planted_bugs() -> None:
    require_oracle()
    rows = []
    for bug in BUGS:
        with planted(bug) as mutant:
            rows.append((bug, *caught(mutant)))
    width = max(len(str(bug)) for bug in BUGS)
    print(f"\n{'planted bug':{width}}  caught by its answers  by its states  (pair number)")
    for bug, by_answers, by_states in rows:
        print(f"{bug!s:{width}}  {by_answers or 'no':>21}  {by_states or 'no':>13}")
    assert [str(bug) for bug, by_answers, by_states in rows if not (by_answers or by_states)] == []
