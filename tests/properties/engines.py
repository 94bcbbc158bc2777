"""All engines on the same cases: what each finds, and the first thing in which two disagree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pypm.core import machine
from pypm.core.guarded import is_guarded
from pypm.core.inference import infer
from pypm.core.patterns import Fun, Op
from pypm.core.printing import print_pattern
from pypm.core.terms import Term, Value, same
from pypm.core.traverse import free_names
from pypm.core.wellformed import bound_after, is_wellformed
from pypm.diagnostics import BudgetError
from pypm.match.lint.term_subjects import Trees
from pypm.match.matcher import Answer, Matcher
from tests.core.declarative import is_match, matches, universe
from tests.properties.generate import Case
from tests.properties.oracle import (
    as_text,
    ask,
    names_in,
    shown_answers,
    shown_configuration,
    shown_value,
)

STEPS: Final = 500
"""Steps of the machine after which a search is left unfinished."""
COMPARED: Final = 40
"""Steps of a search that are compared in full."""


@dataclass
class Search:
    """What the Python machine did: its answers, its steps, and what it became in the first ones."""

    stores: list[Any]
    steps: int
    ended: bool
    became: list[str]
    visits: list[frozenset[tuple[Term, bool]]] = field(default_factory=list)
    """For each answer the operators on the way to it, with their `keep` marks."""


def search(
    case: Case, module: Any = machine, steps: int = STEPS, compared: int = COMPARED
) -> Search:
    """Run a machine: `pypm.core.machine`, or a mutant of it."""
    names = sorted(set().union(*map(names_in, case.patterns)))
    state = module.init(case.patterns, case.terms)
    found = Search([], 0, False, [shown_configuration(c, names) for c in state[:compared]])
    visited: list[frozenset[tuple[Term, bool]]] = [frozenset()]
    while state:
        if module.is_success(state):
            found.stores.append(state[0].store)
            found.visits.append(visited.pop())
            state = state[1:]
        elif found.steps == steps:
            return found
        else:
            after = module.step(state)
            before = visited.pop() | _visit(state[0].actions[0])
            visited += [before] * (len(after) - len(state) + 1)
            if found.steps < compared:
                new = after[: len(after) - len(state) + 1]
                found.became.append(" | ".join([shown_configuration(c, names) for c in new]))
            found.steps += 1
            state = after
    found.ended = True
    return found


def _visit(action: Any) -> frozenset[tuple[Term, bool]]:
    match getattr(action, "pattern", None):
        case Op(keep=keep) | Fun(keep=keep) if hasattr(action, "term"):
            return frozenset({(action.term, keep)})
    return frozenset()


# --- what the oracle is asked ---------------------------------------------------------------------


@dataclass
class Questions:
    """Queries about one case, each with the reply that agrees with the Python side."""

    case: Case
    found: Search
    asked: dict[str, str] = field(default_factory=dict)


def questions(case: Case, found: Search, compared: int = COMPARED) -> Questions:
    """Everything that the oracle can be asked about a search that Python has made."""
    text = as_text(case.patterns, case.terms)
    setup = len(case.patterns) > 1  # the step of the operator that stands above several roots
    asks = Questions(case, found)
    shown = shown_answers(map(machine.theta, found.stores))
    if found.ended:
        needed = found.steps + setup + len(found.stores) + 1
        asks.asked[f"run\t{needed}\t{text}"] = shown
        asks.asked[f"run\t{needed - 1}\t{text}"] = "timeout"
        asks.asked[f"vm\t{10 * needed + 100}\t{text}"] = shown
        asks.asked[f"big\t{needed + 1}\t{text}"] = shown
    else:
        asks.asked[f"run\t{found.steps + setup}\t{text}"] = "timeout"
    if compared:
        names = " ".join(sorted(set().union(*map(names_in, case.patterns))))
        steps = "\t".join(found.became)
        asks.asked[f"steps\t{compared + setup}\t{names}\t{text}"] = steps
    asks.asked |= checks(case, found, text, shown)
    return asks


def checks(case: Case, found: Search, text: str, shown: str) -> dict[str, str]:
    """The static checks, and the total procedure where they allow it."""
    asked: dict[str, str] = {}
    good, bound = [], frozenset[str]()
    for pattern in case.patterns:
        good.append((is_wellformed(pattern, bound), is_guarded(pattern)))
        bound = bound_after(pattern, bound)
        inferred = infer(pattern)
        best = _checked(is_wellformed(inferred), is_guarded(inferred))
        asked[f"infer\t{print_pattern(pattern)}"] = best
    well, guarded = all(w for w, _ in good), all(g for _, g in good)
    if len(case.patterns) == 1:
        pattern = print_pattern(case.patterns[0])
        asked[f"check\t{pattern}"] = _checked(well, guarded)
        if found.ended or not guarded:
            asked[f"all\t{text}"] = shown if guarded else "unguarded"
            first = shown_answers(map(machine.theta, found.stores[:1]))
            asked[f"first\t{text}"] = first if guarded else "unguarded"
    else:
        for pattern, (_, g) in zip(case.patterns, good, strict=True):
            alone = is_wellformed(pattern)
            asked[f"check\t{print_pattern(pattern)}"] = _checked(alone, g)
    return asked


def _checked(well: bool, guarded: bool) -> str:
    return f"wf={str(well).lower()} guarded={str(guarded).lower()}"


# --- the other engines ----------------------------------------------------------------------------


def matched(case: Case, steps: int) -> Iterator[Answer]:
    """The fast matcher's answers, each root extending those for the last."""
    matcher = Matcher(case.patterns)
    trees = Trees(matcher.index)

    def extend(root: int, given: Answer | None) -> Iterator[Answer]:
        for answer in matcher.answers(
            trees.tree(case.terms[root]), root=root, given=given, budget=steps
        ):
            if root + 1 < len(case.patterns):
                yield from extend(root + 1, answer)
            else:
                yield answer

    return extend(0, None)


def by_name(answers: Iterable[Mapping[str, Value]]) -> list[str]:
    """Answers to be compared whatever the order in which names were bound."""
    return [str(sorted((n, shown_value(v)) for n, v in a.items())) for a in answers]


def matcher_problem(case: Case, found: Search) -> str:
    """How the matcher disagrees with a finished search: in distinct answers, in their order, or in
    what the first derivation of one visits.
    """
    try:
        answers = list(matched(case, 20 * (found.steps + 10)))
    except BudgetError:
        return "the matcher does not end"
    visits = [frozenset((v.subject.term, v.keep) for v in answer.visits) for answer in answers]
    actual = _first(by_name(answer.bindings for answer in answers), visits)
    expected = _first(by_name(map(machine.theta, found.stores)), found.visits)
    if [*actual] != [*expected]:
        return f"the matcher finds {[*actual]}, not {[*expected]}"
    wrong = next((name for name in actual if actual[name] != expected[name]), None)
    return "" if wrong is None else f"for {wrong} the matcher visits {actual[wrong]}"


def _first(
    answers: Iterable[str], visits: Iterable[frozenset[tuple[Term, bool]]]
) -> dict[str, frozenset[tuple[Term, bool]]]:
    """The distinct answers in order, each with what its first derivation visits."""
    first: dict[str, frozenset[tuple[Term, bool]]] = {}
    for answer, visited in zip(answers, visits, strict=True):
        first.setdefault(answer, visited)
    return first


def declarative_problem(case: Case, found: Search, tries: int = 300) -> str:
    """How a finished search disagrees with the declarative rules; nothing is said of large cases.

    Every answer is a match. If the pattern is well-formed, every match with values at hand
    extends an answer.
    """
    (pattern,), (term,) = case.patterns, case.terms
    values = universe(pattern, term)
    for store in found.stores:
        more = [*values, *store.values.values()]
        if len(more) ** len(names_in(pattern)) <= tries**2 and not is_match(
            pattern, machine.theta(store), term, more
        ):
            return f"no match: {machine.theta(store)}"
    names = sorted(free_names(pattern))
    if not is_wellformed(pattern) or len(values) ** len(names_in(pattern)) > tries:
        return ""
    answers = [machine.theta(store) for store in found.stores]
    for theta in matches(pattern, names, term, values):
        if not any(_below(answer, theta) for answer in answers):
            return f"a match that extends no answer: {dict(theta)}"
    return ""


def _below(answer: Mapping[str, Value], theta: Mapping[str, Value]) -> bool:
    return all(n in theta and same(v, theta[n]) for n, v in answer.items())


def is_small(case: Case, tries: int = 300) -> bool:
    """Whether brute force can say something."""
    if len(case.patterns) > 1:
        return False
    values = universe(case.patterns[0], case.terms[0])
    return len(values) ** len(names_in(case.patterns[0])) <= tries


# --- together -------------------------------------------------------------------------------------


@dataclass
class Report:
    """How the engines did on some cases."""

    shares: Counter[str] = field(default_factory=Counter)
    problems: list[tuple[Case, str]] = field(default_factory=list)

    def add(self, other: Report) -> None:
        self.shares += other.shares
        self.problems += other.problems

    def share(self, name: str) -> float:
        return self.shares[name] / max(1, self.shares["pairs"])

    def __str__(self) -> str:
        shown = [f"{name} {self.share(name):.1%}" for name in SHARES]
        return f"{self.shares['pairs']:,} pairs: {', '.join(shown)}"


SHARES: Final = (
    "matching",
    "several answers",
    "ill-formed",
    "unguarded",
    "unfinished",
    "several roots",
    "recursive",
    "by brute force",
)


def compare(cases: Sequence[Case], compared: int = COMPARED) -> Report:
    """Put cases to all engines."""
    report = Report()
    batch = []
    for case in cases:
        found = search(case, compared=compared)
        asks = questions(case, found, compared)
        batch.append(asks)
        _count(report.shares, case, found)
        problem = matcher_problem(case, found) if found.ended else ""
        if not problem and found.ended and is_small(case):
            report.shares["by brute force"] += 1
            problem = declarative_problem(case, found)
        if problem:
            report.problems.append((case, problem))
    replies = iter(ask([query for asks in batch for query in asks.asked]))
    for asks in batch:
        for query, expected in asks.asked.items():
            reply = next(replies)
            if query.startswith("steps"):
                # Of several roots the oracle shows the step that sets them up.
                reply = reply if len(asks.case.patterns) == 1 else reply.partition("\t")[2]
            if reply != expected:
                report.problems.append((asks.case, _disagreement(query, reply, expected)))
    return report


def _count(shares: Counter[str], case: Case, found: Search) -> None:
    bound, well = frozenset[str](), True
    for pattern in case.patterns:
        well = well and is_wellformed(pattern, bound)
        bound = bound_after(pattern, bound)
    shares["pairs"] += 1
    shares["matching"] += bool(found.stores)
    shares["several answers"] += len(found.stores) > 1
    shares["ill-formed"] += not well
    shares["unguarded"] += not all(map(is_guarded, case.patterns))
    shares["unfinished"] += not found.ended
    shares["several roots"] += len(case.patterns) > 1
    shares["recursive"] += any("rec " in print_pattern(pattern) for pattern in case.patterns)


def _disagreement(query: str, reply: str, expected: str) -> str:
    name = query.split("\t", maxsplit=1)[0]
    if name != "steps":
        return f"`{name}` replies {reply!r}; Python has {expected!r}"
    pairs = zip(reply.split("\t"), expected.split("\t"), strict=False)
    at, (theirs, ours) = next(
        ((at, pair) for at, pair in enumerate(pairs) if pair[0] != pair[1]), (-1, ("", ""))
    )
    return f"step {at} gives {theirs!r}; in Python {ours!r}"


def problem_of(case: Case) -> str:
    """The first disagreement about one case, or nothing."""
    problems = compare([case]).problems
    return problems[0][1] if problems else ""
