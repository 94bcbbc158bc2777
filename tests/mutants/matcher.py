"""Mutants of the fast matcher."""

from tests.mutants.mutant import Mutant

__all__ = ["MATCHER"]


def _step(does: str, old: str, new: str) -> Mutant:
    return Mutant(does, "pypm/match/compile/steps.py", ((old, new),))


def _state(does: str, old: str, new: str) -> Mutant:
    return Mutant(does, "pypm/match/search_state.py", ((old, new),))


def _lower(does: str, old: str, new: str) -> Mutant:
    return Mutant(does, "pypm/match/compile/lower.py", ((old, new),))


def _index(does: str, old: str, new: str) -> Mutant:
    return Mutant(does, "pypm/match/index.py", ((old, new),))


def _extent(does: str, old: str, new: str) -> Mutant:
    return Mutant(does, "pypm/match/compile/extent.py", ((old, new),))


MATCHER = [
    _step(
        "a name that occurs twice is not compared",
        "            if cell.read() is not subject.term:\n                return FAIL\n",
        "",
    ),
    _step(
        "a name keeps its first occurrence alone",
        "run.assign(cell, cell.value, (*cell.places, subject))",
        "pass",
    ),
    _step(
        "an operator is visited where it may not be",
        " or not run.admits(subject):\n            return FAIL\n        run.visits",
        ":\n            return FAIL\n        run.visits",
    ),
    _step("an operator is not visited", "run.visits = (subject, keep, run.visits)", "pass"),
    _step("no operator is kept", "(subject, keep, run.visits)", "(subject, False, run.visits)"),
    _step(
        "children are matched from the last",
        "last_first = tuple(enumerate(arguments))[::-1]",
        "last_first = tuple(enumerate(arguments))",
    ),
    _step(
        "an operator variable is not bound",
        "if item in subject.state.items and _bind(run, frame[slot], subject.operator):",
        "if item in subject.state.items:",
    ),
    _step(
        "values are bound by equality",
        "return same(cell.read(), all_made(value))",
        "return cell.read() == all_made(value)",
    ),
    _step("a field is met nowhere", 'places[cast("Subject", part)] = None', "pass"),
    _step("commits to the first alternate", "for step in steps[:0:-1]:", "for step in ():"),
    _step(
        "tries the last alternates in turn", "for step in steps[:0:-1]:", "for step in steps[1:]:"
    ),
    _step(
        "local names keep their locations",
        "            frame[slot] = Cell()\n",
        "            frame[slot] = frame[slot] or Cell()\n",
    ),
    _step(
        "local names need not be bound",
        "return FAIL if frame[slot].value is UNDEFINED else rest",
        "return rest",
    ),
    _step("guards are not tested", "return rest if holds(frame) else FAIL", "return rest"),
    _step("a let may be undefined", "if found is UNDEFINED:", "if False:"),
    _step(
        "a constraint on a tuple is matched at the first term in it",
        "if not cell.places or isinstance(cell.value, COMPOUND):",
        "if not cell.places:",
    ),
    _step(
        "a tuple is the terms in it",
        "elif subject not in cell.places or isinstance(cell.value, COMPOUND):",
        "elif subject not in cell.places:",
    ),
    _step(
        "a computed term is met where any of those was of which it is computed",
        "{place: None for place in cell.places if place.term in terms}",
        "{place: None for place in cell.places}",
    ),
    _step(
        "a tuple is met nowhere",
        "elif isinstance(part, COMPOUND):",
        "elif False:",
    ),
    _step(
        "a call is known by the terms of its parameters, wherever they are",
        "if not cell.places:\n        return exact",
        "if cell.value is not UNREAD:\n        return exact",
    ),
    _step(
        "a call is known by its tuples, wherever the terms in them are",
        "return (exact(cell.value), cell.places) if isinstance(cell.value, COMPOUND)",
        "return exact(cell.value) if isinstance(cell.value, COMPOUND)",
    ),
    _step(
        "a constraint on nothing passes",
        "if not cell.places or isinstance(cell.value, COMPOUND):\n            return FAIL",
        "if not cell.places or isinstance(cell.value, COMPOUND):\n            return rest",
    ),
    _step("a call that succeeded is recorded as failed", "if not self.has_succeeded:", "if True:"),
    _step(
        "calls are done that have names left to bind",
        "self.is_closed = all(cell.value is not UNDEFINED or cell is NOWHERE for cell in cells)",
        "self.is_closed = True",
    ),
    _step("choices are cut after an answer", "if run.answers == answers:", "if True:"),
    _step(
        "a call is known by its subject alone",
        "key = (body, subject, *[_identity(cell, cells) for cell in cells])",
        "key = (body, subject)",
    ),
    _step("unbound locations are one", "return cells.index(cell)", "return 0"),
    _step("1 and 1.0 are one parameter", "return exact(cell.value)\n", "return cell.value\n"),
    _state("calls stay done on backtracking", "self.done.discard(value)", "pass"),
    _state(
        "visits stay on backtracking",
        "length, self.visits, todo = self.choices.pop()",
        "length, _, todo = self.choices.pop()",
    ),
    _state(
        "records are compared by the occurrences in them",
        "return all_made(self.value) if isinstance(self.value, Record) else self.value",
        "return self.value",
    ),
    _state(
        "occurrences stay on backtracking",
        "                cell.places = places\n        return todo",
        "        return todo",
    ),
    _state(
        "values stay on backtracking",
        "                cell.value = value\n                cell.places",
        "                cell.places",
    ),
    _lower(
        "a local name is expected to be as one outside",
        "expected = {n: item for n, item in expected.items() if n != name}",
        "expected = {**expected}",
    ),
    _lower(
        "a guard's fact is all that is expected",
        "self._index.both(known, self._index.fact(fact))",
        "self._index.fact(fact)",
    ),
    _lower(
        "the item of alternates is that of the first",
        "self._index.either([item for _, item in branches])",
        "branches[0][1]",
    ),
    _lower(
        "of a repeated parameter the last argument counts",
        "first.setdefault(parameter, actual)",
        "first[parameter] = actual",
    ),
    _lower("a body has one item", "wanted = tuple(sorted(asked))", "wanted = ()"),
    _index(
        "a conjunction holds with one part",
        "if item in satisfied or not (pair is None or satisfied.issuperset(pair)):",
        "if item in satisfied:",
    ),
    _index(
        "a subject is judged by its first child",
        "if all(wanted in given for wanted, given in zip(rest, others, strict=True)):",
        "if True:",
    ),
    _index("recursions never hold", "self._above[item].append(recursion)", "pass"),
    _extent(
        "what one alternate binds is bound below",
        "bound_below(left, bound, context) & bound_below(right, bound, context)",
        "bound_below(left, bound, context) | bound_below(right, bound, context)",
    ),
    _extent(
        "a local name is bound below outside of its binder",
        "return (inside - {name}) | (bound & {name})",
        "return inside | bound",
    ),
    _extent(
        "a constraint binds below wherever its term is",
        "return bound_below(constraint, after, context) if name in after else after",
        "return bound_below(constraint, after, context)",
    ),
    _extent("a recursion binds all of its parameters below", "if assumed <= inside:", "if True:"),
    _extent(
        "a constraint visits nothing",
        "return _extent(body, tag) | _extent(constraint, _tag_of(body, name))",
        "return _extent(body, tag)",
    ),
]
