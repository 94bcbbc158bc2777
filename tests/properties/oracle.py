"""The extracted machine as a process: queries and answers in PyPM's text syntax.

`coq/oracle/main.ml` says what can be asked. Here is also how the Python side prints what the
oracle prints: answers, and the steps of a search.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from shutil import which
from tempfile import TemporaryFile
from typing import Any, Final

import pytest

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
from pypm.core.printing import print_member, print_name, print_pattern, print_term, print_value
from pypm.core.records import Record, fields_of
from pypm.core.terms import Term, Terms, Value
from pypm.core.text import parse_term

COQ: Final = Path(__file__).parents[2] / "coq"
EXECUTABLE: Final = COQ / "oracle" / "build" / "oracle"


@cache
def build() -> str:
    """Build the oracle; what keeps it from being built, if anything does."""
    missing = [tool for tool in ("make", "coqc", "ocamlopt") if which(tool) is None]
    if missing:
        return f"the oracle was skipped: {', '.join(missing)} missing (`make proofs` installs Coq)"
    command = ["make", "-C", COQ, "oracle"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        return f"the oracle could not be built:\n{made.stdout}{made.stderr}"
    return ""


def require_oracle() -> None:
    """Skip a test where Coq is missing. A build that fails is a failure; under CI, so is a skip."""
    problem = build()
    if problem.startswith("the oracle was skipped") and os.environ.get("CI") != "true":
        pytest.skip(problem)
    if problem:
        pytest.fail(problem, pytrace=False)


def ask(queries: Sequence[str]) -> list[str]:
    """The answers to many queries, in one go: through files, so that neither side waits."""
    with TemporaryFile() as asked, TemporaryFile() as told:
        asked.write("\n".join([*queries, ""]).encode())
        asked.seek(0)
        subprocess.run([EXECUTABLE, "--batch"], stdin=asked, stdout=told, check=True)
        told.seek(0)
        answers = told.read().decode().split("\n")[:-1]
    assert len(answers) == len(queries)
    return answers


class Dialogue:
    """A running oracle that answers one query after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [EXECUTABLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def __enter__(self) -> Dialogue:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def ask(self, query: str) -> str:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(query + "\n")
        return stdout.readline().removesuffix("\n")


# --- as the oracle prints -------------------------------------------------------------------------

_name: Final = lru_cache(1000)(print_name)
_term: Final = lru_cache(10_000)(print_term)


def shown_value(value: Value) -> str:
    if isinstance(value, Term):
        return _term(value)
    if type(value) is tuple:
        inner = ", ".join(map(shown_value, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, Record):
        given = [f"{print_member(n)}={shown_value(v)}" for n, v in fields_of(value).items()]
        return f"record({', '.join(given)})"
    return print_value(value)


def shown_answer(answer: Mapping[str, Value]) -> str:
    bindings = [f"{_name(name)}={shown_value(value)}" for name, value in answer.items()]
    return "{" + ", ".join(bindings) + "}"


def shown_answers(answers: Iterable[Mapping[str, Value]]) -> str:
    shown = [shown_answer(answer) for answer in answers]
    return "\t".join(["ok", *shown]) if shown else "fail"


def _commas(names: Iterable[object]) -> str:
    return ",".join([_location(name) for name in names])


def _location(location: object) -> str:
    if isinstance(location, str):
        return _name(location)
    return "-" if location is None else str(location)


def _form(pattern: Pattern) -> str:
    """The form of a pattern, with the names and numbers in it."""
    match pattern:
        case Var(name):
            return _name(name)
        case Op(operator, parts):
            return f"{operator.name}/{len(parts)}"
        case Fun(name, parts):
            return f"${_name(name)}/{len(parts)}"
        case Alt():
            return "|"
        case Exists(name):
            return f"exists {_name(name)}"
        case Guarded():
            return "where"
        case Let(_, name):
            return f"let {_name(name)}"
        case Constrained(_, _, name):
            return f"with {_name(name)}"
        case Mu(definition, actuals):
            return f"rec({_commas(definition.parameters)})({_commas(actuals)})"
        case Call(index, actuals):
            return f"^{index}({_commas(actuals)})"


def _action(action: Any, names: Sequence[str]) -> str:
    def here() -> str:
        return f"{_form(action.pattern)} {len(action.context)} {environment()}"

    def environment() -> str:
        return f"[{_commas(map(action.environment.get, names))}]"

    match type(action).__name__:  # by name: a mutant of the machine has classes of its own
        case "MatchAction":
            return f"match {here()} {_term(action.term)}"
        case "GuardAction":
            return f"guard {environment()}"
        case "LetAction":
            return f"let {_name(action.name)} {environment()}"
        case "CheckAction":
            return f"check {_location(action.location)}"
        case _:
            return f"matchC {_name(action.name)} {here()}"


def shown_configuration(configuration: Any, names: Sequence[str]) -> str:
    """A configuration in full, its environments at these names."""
    store = configuration.store
    cells = [f"{_location(at)}={shown_value(value)}" for at, value in store.values.items()]
    actions = [_action(action, names) for action in configuration.actions]
    return " :: ".join([f"{store.next}{{{', '.join(cells)}}}", *actions])


def names_in(pattern: Pattern) -> set[str]:
    """Every name that an environment may be asked for."""
    match pattern:
        case Var(name):
            return {name}
        case Op(_, parts):
            return set().union(*map(names_in, parts))
        case Fun(name, parts):
            return {name}.union(*map(names_in, parts))
        case Alt(left, right):
            return names_in(left) | names_in(right)
        case Exists(name, body) | Let(body, name):
            return {name} | names_in(body)
        case Guarded(body):
            return names_in(body)
        case Constrained(body, constraint, name):
            return {name} | names_in(body) | names_in(constraint)
        case Mu(definition, actuals):
            return {*definition.parameters, *actuals} | names_in(definition.body)
        case Call(_, actuals):
            return set(actuals)


# --- several roots --------------------------------------------------------------------------------

ROOTS: Final = Operator("roots")
"""Stands above several roots: its one step is what sets up a search with several (section 13)."""


def as_text(patterns: Sequence[Pattern], terms: Sequence[Term]) -> str:
    """A pattern and a term as the fields of a query."""
    shown, subjects = map(print_pattern, patterns), map(_term, terms)
    if len(patterns) == 1:
        return f"{next(shown)}\t{next(subjects)}"
    return f"{ROOTS}({', '.join(shown)})\t{ROOTS}({', '.join(subjects)})"


# --- answers read back ----------------------------------------------------------------------------


def read_answers(reply: str, terms: Terms) -> list[dict[str, Term]] | None:
    """The answers in a reply that bind names to terms only; None where there is no verdict."""
    verdict, *shown = reply.split("\t")
    if verdict not in ("ok", "fail"):
        return None
    answers = []
    for text in shown:
        bindings = _BINDING.split(text[1:-1])[1:]
        pairs = zip(bindings[::2], bindings[1::2], strict=True)
        answers.append({name: parse_term(value, terms) for name, value in pairs})
    return answers


_BINDING: Final = re.compile(r"(?:^|, )(\w+)=(?![^{]*\})")
