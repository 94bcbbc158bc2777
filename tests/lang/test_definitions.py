"""Where definitions may stand: modules, functions, classes, cells, code without source."""

# Patterns in a class have no `self`, and see the values of loops as they were.
# ruff: noqa: N805, B023

from __future__ import annotations

import ast
import dataclasses
import importlib
import linecache
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pypm import PyPMError, pattern, rule, var
from pypm.core.patterns import Definition, Mu
from pypm.core.printing import print_pattern
from pypm.diagnostics import PatternError
from pypm.lang.pattern_function import PatternFunction
from tests.lang.subjects import EXP, RELU, a, assert_answers, b, bindings, make

ROOT = Path(__file__).resolve().parent.parent.parent

HEAD = """\
from pypm import pattern
from tests.lang.subjects import EXP, RELU
"""

TWO = """
@pattern
def P(x):
    return RELU(x)
@pattern
def P(x):
    return EXP(x)
"""


def relu(x: Any) -> Any:
    return make(RELU, x)


def exp(x: Any) -> Any:
    return make(EXP, x)


# --- functions --------------------------------------------------------------------------------


def scaled_by(factor: int) -> PatternFunction:
    @pattern
    def Scaled(x):
        return x * factor

    @pattern
    def Scaled(x):
        return Scaled(x) / factor

    return Scaled


def test_factories_start_afresh_and_close_over_their_names() -> None:
    twice, thrice = scaled_by(2), scaled_by(3)
    assert len(twice.alternates) == len(thrice.alternates) == 2
    assert_answers(twice, (a * 2,), [{"x": a}])
    assert_answers(twice, (a * 3,), [])
    assert_answers(thrice, (a * 3 / 3,), [{"x": a}])
    assert_answers(thrice, (a * 2 / 3,), [])


def test_mutual_recursion_between_locals_of_a_function() -> None:
    @pattern
    def Even(x):
        return RELU(Odd(x)) | x

    @pattern
    def Odd(x):
        return EXP(Even(x))

    assert_answers(Even, (relu(exp(a)),), [{"x": a}, {"x": relu(exp(a))}])


def test_loops_start_afresh_at_each_turn_and_see_their_own_values() -> None:
    forms = []
    for factor in (2, 3):

        @pattern
        def P(x):
            return x * factor

        @pattern
        def P(x):
            return x / factor

        forms.append(P)
    for factor, form in zip((2, 3), forms, strict=True):
        assert_answers(form, (a * factor,), [{"x": a}])
        assert_answers(form, (a / factor,), [{"x": a}])
        assert_answers(form, (a * 4,), [])


def test_a_name_bound_to_something_else_is_no_alternate() -> None:
    P: Any = 3

    @pattern
    def P(x):
        return RELU(x)

    first = P

    def inner() -> PatternFunction:
        @pattern
        def P(x):
            return EXP(x)

        return P

    assert len(first.alternates) == 1
    assert len(inner().alternates) == 1


def test_alternates_in_classes_of_one_name() -> None:
    class One:
        @pattern
        def P(x):
            return RELU(x)

    class Two:
        @pattern
        def P(x):
            return EXP(x)

        class Inner:
            @pattern
            def P(x):
                return x

    assert [len(f.alternates) for f in (One.P, Two.P, Two.Inner.P)] == [1, 1, 1]


# --- modules ----------------------------------------------------------------------------------


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("sample_"):
            del sys.modules[name]


def test_patterns_call_patterns_of_other_modules(modules: Path) -> None:
    (modules / "sample_one.py").write_text(HEAD + TWO)
    (modules / "sample_two.py").write_text(
        HEAD
        + "import sample_one as one\nfrom sample_one import P\n"
        + "@pattern\ndef Q(x):\n    return one.P(P(x))\n"
    )
    two = importlib.import_module("sample_two")
    assert_answers(two.Q, (relu(exp(a)),), [{"x": a}])
    assert_answers(two.Q, (relu(a),), [])


def test_modules_may_call_each_other(modules: Path) -> None:
    (modules / "sample_one.py").write_text(
        HEAD + "import sample_two\n@pattern\ndef P(x):\n    return RELU(sample_two.Q(x)) | x\n"
    )
    (modules / "sample_two.py").write_text(
        HEAD + "import sample_one\n@pattern\ndef Q(x):\n    return EXP(sample_one.P(x))\n"
    )
    one = importlib.import_module("sample_one")
    assert_answers(one.P, (relu(exp(a)),), [{"x": a}, {"x": relu(exp(a))}])


@pytest.mark.parametrize("edit", ["", "\n\n\n# lines above\n\n\n\n\n\n\n"])
def test_a_reload_starts_afresh(modules: Path, edit: str) -> None:
    path = modules / "sample_reload.py"
    path.write_text(HEAD + TWO)
    module = importlib.import_module("sample_reload")
    before = module.P
    path.write_text(HEAD + edit + TWO)
    linecache.checkcache()
    module = importlib.reload(module)
    assert module.P is not before
    assert len(module.P.alternates) == 2
    assert_answers(module.P, (exp(a),), [{"x": a}])


def test_a_reload_with_one_alternate_moved_down_starts_afresh(modules: Path) -> None:
    path = modules / "sample_moved.py"
    path.write_text(HEAD + "@pattern\ndef P(x):\n    return RELU(x)\n")
    module = importlib.import_module("sample_moved")
    path.write_text(HEAD + "\n\n\n@pattern\ndef P(x):\n    return EXP(x)\n")
    linecache.checkcache()
    module = importlib.reload(module)
    assert_answers(module.P, (exp(a),), [{"x": a}])
    assert_answers(module.P, (relu(a),), [])


# --- cells ------------------------------------------------------------------------------------


class Notebook:
    """Runs cells as notebooks do: every statement compiled alone, its source in linecache."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def run(self, source: str, file: str) -> None:
        lines = source.splitlines(keepends=True)
        linecache.cache[file] = (len(source), None, lines, file)
        for statement in ast.parse(source, file).body:
            code = compile(ast.Module([statement], []), file, "exec")
            exec(code, self.names)  # as the notebook's kernel does


@pytest.mark.parametrize("file", ["<ipython-input-{}>", "/tmp/ipykernel_0/{}.py"])
def test_alternates_in_a_cell(file: str) -> None:
    notebook = Notebook()
    notebook.run(HEAD, file.format(1))
    notebook.run(TWO, file.format(2))
    form = notebook.names["P"]
    assert_answers(form, (relu(a),), [{"x": a}])
    assert_answers(form, (exp(a),), [{"x": a}])

    # The same cell again, and then another text of it, start afresh.
    notebook.run(TWO, file.format(2))
    assert len(notebook.names["P"].alternates) == 2
    notebook.run("\n\n\n\n\n\n\n\n" + TWO, file.format(3))
    assert len(notebook.names["P"].alternates) == 2
    notebook.run("\n\n\n\n\n\n\n\n\n@pattern\ndef P(x):\n    return x / 2\n", file.format(4))
    assert_answers(notebook.names["P"], (a / 2,), [{"x": a}])
    assert_answers(notebook.names["P"], (relu(a),), [])


def test_a_diagnostic_in_a_cell_shows_its_source() -> None:
    notebook = Notebook()
    notebook.run(HEAD + "@pattern\ndef Wrong(x):\n    return RELU(x, xx)\n", "<cell>")
    with pytest.raises(PyPMError) as caught:
        notebook.names["Wrong"].core
    assert "<cell>:5:" in str(caught.value)
    assert "    return RELU(x, xx)" in str(caught.value)


# --- code without source ----------------------------------------------------------------------


def test_exec_cannot_be_read() -> None:
    with pytest.raises(PyPMError, match="the source of `P` cannot be read"):
        exec(HEAD + TWO, {})


def test_a_command_line_cannot_be_read_or_is_read_right() -> None:
    """From Python 3.13 on, `-c` keeps its source."""
    program = HEAD + TWO + "print(len(P.core), len(P.alternates))\n"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        assert "the source of `P` cannot be read" in done.stderr
        assert "notebook" in done.stderr
    else:
        assert done.stdout == "1 2\n"


def test_only_functions_can_be_read() -> None:
    with pytest.raises(PyPMError, match="not a plain function"):
        pattern(lambda x: x)
    with pytest.raises(PyPMError, match="not a plain function"):

        @pattern
        async def P(x):
            return RELU(x)


# --- values -----------------------------------------------------------------------------------


def test_calling_a_pattern_as_python_says_what_to_do() -> None:
    form = scaled_by(2)
    with pytest.raises(TypeError, match="pattern `Scaled` is read, not run"):
        form(3)
    with pytest.raises(TypeError, match="only inside a pattern"):
        __import__("pypm").var()
    with pytest.raises(TypeError, match="`@rule` takes a pattern"):
        rule(relu)


def test_repr() -> None:
    assert repr(scaled_by(2)) == "<pattern Scaled(x)>"


def test_forward_references_are_found_at_first_use() -> None:
    notebook = Notebook()
    notebook.run(HEAD + "@pattern\ndef P(x):\n    return RELU(Q(x))\n", "<one>")
    notebook.run("@pattern\ndef Q(x):\n    return EXP(x)\n", "<two>")
    assert bindings(notebook.names["P"], relu(exp(b))) == [{"x": b.term}]


# --- what is shared -----------------------------------------------------------------------------


def test_patterns_that_call_one_share_its_definition() -> None:
    @pattern
    def Inner(x):
        return RELU(x)

    @pattern
    def One(x):
        return EXP(Inner(x))

    @pattern
    def Two(x):
        return RELU(Inner(x))

    (one,), (two,) = definitions(One), definitions(Two)
    assert one is two
    assert one.closed is not None
    assert_answers(One, (exp(relu(a)),), [{"x": a}])
    assert_answers(Two, (relu(relu(a)),), [{"x": a}])


def test_what_is_shared_follows_a_name_that_is_bound_anew() -> None:
    """Two calls Middle, which was read when Inner was something else."""
    notebook = Notebook()
    inner = HEAD + "@pattern\ndef Inner(x):\n    return {}(x)\n"
    outer = "@pattern\ndef Outer(x):\n    return RELU(Middle(x))\n"
    notebook.run(inner.format("RELU"), "<one>")
    notebook.run("@pattern\ndef Middle(x):\n    return EXP(Inner(x))\n", "<two>")
    notebook.run(outer, "<three>")
    assert bindings(notebook.names["Outer"], relu(exp(relu(b)))) == [{"x": b.term}]
    notebook.run(inner.format("EXP"), "<one again>")
    notebook.run(outer, "<three again>")
    assert bindings(notebook.names["Outer"], relu(exp(exp(b)))) == [{"x": b.term}]


def test_what_a_recursion_descends_by_is_not_shared() -> None:
    """It must be seen that Step goes one operator down."""

    @pattern
    def Step(x):
        return RELU(x)

    @pattern
    def Down(x):
        y = var()
        s = Step(y)
        y <= Down(x)
        return s

    @pattern
    def Down(x):
        return x

    assert [d.name for d in definitions(Down)] == ["Down"]
    assert_answers(Down, (relu(relu(a)),), [{"x": a}, {"x": relu(a)}, {"x": relu(relu(a))}])


def test_below_an_operator_a_recursive_pattern_shares_what_it_calls() -> None:
    @pattern
    def Step(x):
        return RELU(x)

    @pattern
    def Down(x):
        return EXP(Step(Down(x)))

    @pattern
    def Down(x):
        return x

    @pattern
    def Apart(x):
        return EXP(Step(x))

    (down,) = definitions(Down)
    (step,) = definitions_in(down.body)
    assert step is definitions(Apart)[0]
    term = exp(relu(exp(relu(a))))
    assert_answers(Down, (term,), [{"x": a}, {"x": exp(relu(a))}, {"x": term}])


def definitions(form: PatternFunction) -> list[Definition]:
    """The definitions that a pattern's roots call, outside of other definitions."""
    return definitions_in(*form.core)


def definitions_in(*parts: Any) -> list[Definition]:
    found: list[Definition] = []
    pending = [*parts]
    while pending:
        part = pending.pop()
        if isinstance(part, Mu):
            found.append(part.definition)
        elif dataclasses.is_dataclass(part):
            pending += [getattr(part, f.name) for f in dataclasses.fields(part)]
        elif isinstance(part, tuple):
            pending += part
    return found


def test_an_alternate_of_any_name() -> None:
    @pattern
    def Half(x):
        return x / 2

    @pattern
    def User(x):
        return EXP(Half(x))

    matcher_before = len(Half.core)

    @Half.alternate
    def half_as_a_product(x):
        return x * 0.5

    @Half.alternate
    def _(x):
        return RELU(x)

    assert half_as_a_product is Half is _
    assert len(Half.alternates) == 3
    assert len(Half.core) == matcher_before == 1
    text = print_pattern(User.core[0])
    assert "aten.div" in text
    assert "aten.mul" in text
    assert "my.relu" in text


def test_an_alternate_that_is_defined_again_is_replaced() -> None:
    @pattern
    def Half(x):
        return x / 2

    for _ in range(2):

        @Half.alternate
        def doubled(x):
            return x + x

    assert len(Half.alternates) == 2


def test_an_alternate_with_other_parameters() -> None:
    @pattern
    def Half(x):
        return x / 2

    @Half.alternate
    def half(x, y):
        return x * y

    with pytest.raises(PatternError, match="other parameters"):
        Half.core
