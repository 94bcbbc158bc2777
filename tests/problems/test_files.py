"""Definitions, workloads and solutions: read as they are, or refused with the place."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from pypm import PyPMError
from pypm.problems.formats.arithmetic import value_of
from pypm.problems.formats.definition import ProblemDefinition
from pypm.problems.formats.solution import ProblemSolution
from pypm.problems.formats.workload import Random, Scalar, read_workloads
from pypm.problems.harness import SolProblem
from tests.problems.small import DEFINITION, WORKLOAD, solution, write


def changed(original: object, place: str, value: object) -> dict[str, object]:
    """A copy with another value at a dotted place; without the field if the value is `...`."""
    found = copy.deepcopy(original)
    *parents, last = place.split(".")
    inner = found
    for name in parents:
        inner = inner[name]  # type: ignore[index]
    if value is ...:
        del inner[last]  # type: ignore[attr-defined]
    else:
        inner[last] = value  # type: ignore[index]
    assert isinstance(found, dict)
    return found


def test_a_problem_is_read_with_all_sizes(tmp_path: Path) -> None:
    paths = write(tmp_path, solution("plain", "def run(x, factor):\n    return x\n"))
    problem = SolProblem.from_files(tmp_path, paths)
    [workload] = problem.workloads
    assert workload.sizes == {"rows": 16, "columns": 64, "all": 1024}
    assert workload.inputs == {"x": Random(), "factor": Scalar(3.0)}
    assert workload.given == WORKLOAD
    assert problem.definition.outputs["y"].sizes(workload.sizes) == (1024,)
    [read] = problem.solutions
    assert (read.file, read.function, read.has_destinations) == ("main.py", "run", False)


def test_a_workload_may_be_a_trace_line(tmp_path: Path) -> None:
    line = {"definition": "scaled", "workload": WORKLOAD, "solution": None, "evaluation": None}
    write(tmp_path, workloads=(line,))
    definition = ProblemDefinition.from_file(tmp_path / "definition.json")
    [workload] = read_workloads(tmp_path / "workload.jsonl", definition)
    assert workload.uuid == "small"


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("axes", ..., "the field `axes` is missing"),
        ("outputs", ..., "the field `outputs` is missing"),
        ("outputs", {}, "names no output"),
        ("reference", ..., "the field `reference` is missing"),
        ("reference", "def run(x:", "the field `reference` is not Python"),
        ("reference", "def go(x, factor): pass", "the reference has no function `run`"),
        ("reference", "def run(factor, x): pass", "takes ['factor', 'x'], but the inputs are"),
        ("axes.rows", 3, "the field `axes.rows` is not an object"),
        ("axes.rows.type", "vra", "did you mean `var`?"),
        ("axes.columns.value", ..., "the field `axes.columns.value` is missing"),
        ("axes.columns.value", "64", "the field `axes.columns.value` is not a whole number: '64'"),
        ("axes.columns.value", True, "the field `axes.columns.value` is not a whole number: True"),
        ("axes.columns.value", -1, "the field `axes.columns.value` is negative: -1"),
        ("axes.all.expression", "rows * cols", "did you mean `columns`?"),
        ("axes.all.expression", "rows()", "`rows()` is not arithmetic"),
        ("inputs.x.dtype", "float23", "did you mean `float32`?"),
        ("inputs.x.shape", ["row"], "an axis `row` that is not in `axes`"),
        ("inputs.x.shape", ..., "the field `inputs.x.shape` is missing"),
        ("inputs.x.shape", [1], "the field `inputs.x.shape` is not a list of texts"),
        ("constraints", ["row > 0"], "an axis `row` that is not defined"),
        ("custom_inputs_entrypoint", "make", "the reference has no function `make`"),
        ("name", " ", "the field `name` is empty"),
    ],
)
def test_a_wrong_definition_is_refused(
    tmp_path: Path, place: str, value: object, message: str
) -> None:
    write(tmp_path, definition=changed(DEFINITION, place, value))
    with pytest.raises(PyPMError) as caught:
        ProblemDefinition.from_file(tmp_path / "definition.json")
    assert message in str(caught.value)
    assert "definition.json" in str(caught.value)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("axes.row", 3, "the axis `row` is not in the definition"),
        ("axes.columns", 64, "the axis `columns` is not variable"),
        ("axes.rows", ..., "the axis `rows` has no size"),
        ("axes.rows", 3, "the constraint `rows % 2 == 0` does not hold"),
        ("axes.rows", 2.5, "the field `axes.rows` is not a whole number"),
        ("uuid", ..., "the field `uuid` is missing"),
        ("inputs.x", ..., "has no source for the input `x`"),
        ("inputs.z", {"type": "random"}, "has an unknown input `z`"),
        ("inputs.x.type", "rand", "did you mean `random`?"),
        ("inputs.x", {"type": "scalar", "value": 1}, "is a number, but the input is a tensor"),
        ("inputs.x", {"type": "custom"}, "the definition makes no inputs"),
        ("inputs.factor.value", "3", "is not a number, or true or false"),
        ("inputs.x", {"type": "safetensors", "path": "no", "tensor_key": "x"}, "there is no file"),
        ("tolerance.max_atol", -1, "is negative"),
        ("tolerance.required_matched_ratio", 2, "is above 1"),
    ],
)
def test_a_wrong_workload_is_refused(
    tmp_path: Path, place: str, value: object, message: str
) -> None:
    write(tmp_path, workloads=(changed(WORKLOAD, place, value),))
    with pytest.raises(PyPMError) as caught:
        SolProblem.from_files(tmp_path)
    assert message in str(caught.value)
    assert "workload.jsonl:1" in str(caught.value) or "small" in str(caught.value)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("definition", "other", "this solution is for `other`, not for `scaled`"),
        ("spec.language", "cuda", "solutions in `cuda` cannot be run"),
        ("spec.entry_point", "main.py", "write `FILE.py::FUNCTION`"),
        ("spec.entry_point", "min.py::run", "did you mean `main.py`?"),
        ("sources", [], "the field `sources` is an empty list"),
        ("sources", [{"path": "/main.py", "content": "1"}], "leaves the folder"),
        ("sources", [{"path": "a/../../main.py", "content": "1"}], "leaves the folder"),
        ("sources", [{"path": "main.py", "content": "1"}] * 2, "occurs twice"),
        ("name", "pypm", "two versions have the name `pypm`"),
    ],
)
def test_a_wrong_solution_is_refused(
    tmp_path: Path, place: str, value: object, message: str
) -> None:
    made = changed(solution("some", "def run(x, factor): pass"), place, value)
    with pytest.raises(PyPMError) as caught:
        SolProblem.from_files(tmp_path, write(tmp_path, made))
    assert message in str(caught.value)


def test_newer_files_list_languages(tmp_path: Path) -> None:
    made = solution("some", "def run(x, factor): pass")
    made = changed(made, "spec.language", ...)
    [path] = write(tmp_path, changed(made, "spec.languages", ["pytorch", "triton"]))
    read = ProblemSolution.from_file(
        path, ProblemDefinition.from_file(tmp_path / "definition.json")
    )
    assert read.name == "some"


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is empty"), ("{", "is not JSON"), ("[]", "is not an object"), ("[" * 10**5, "not JSON")],
)
def test_files_that_are_no_objects(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path)
    (tmp_path / "workload.jsonl").write_text(text)
    with pytest.raises(PyPMError) as caught:
        SolProblem.from_files(tmp_path)
    assert message in str(caught.value)


def test_files_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(PyPMError, match="there is no file"):
        SolProblem.from_files(tmp_path)
    with pytest.raises(PyPMError, match="there is no folder"):
        SolProblem.from_files(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a * b + 1", 13),
        ("(a - b) // -2", 0),
        ("a % b ** 2", 3),
        ("a == 3 and b != 3", True),
        ("1 < a < b or not a", True),
    ],
)
def test_arithmetic(text: str, value: object) -> None:
    assert value_of(text, {"a": 3, "b": 4}) == value


@pytest.mark.parametrize(
    "text",
    ["a.b", "f(a)", "a[0]", "c", "a / 0", "9 ** 63", "2 ** a ** 9", "'a' * 9", "lambda: 1", "a +"],
)
def test_what_is_not_arithmetic(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        value_of(text, {"a": 3})
