"""Parts of workers and of the harness, without processes."""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from torch import Tensor

from pypm import PyPMError
from pypm.problems.channel import Broken, Channel, sockets
from pypm.problems.formats.workload import Tolerance
from pypm.problems.judging import compare
from pypm.problems.memory import Memory, bits_equal
from pypm.problems.table import table
from pypm.problems.traces import Correctness, Performance, Status, Trace, append
from pypm.problems.worker.calls import WrongOutput, call
from pypm.problems.worker.inputs import inputs_maker
from pypm.roofline import Score

X = {"name": "x", "shape": [4], "dtype": "float32", "type": "random"}
Y = {"name": "y", "shape": [4], "dtype": "float32"}


def called(function: Callable[..., object], has_destinations: bool = False) -> Tensor:
    place = torch.full((4,), math.nan)
    call(function, [torch.arange(4.0)], [place], [Y], has_destinations)
    return place


# --- calls ----------------------------------------------------------------------------------------


class Lazy(Tensor):
    """A subclass."""


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1,
        lambda x: [x + 1],
        lambda x: {"y": x + 1},
        lambda x: (x + 1).as_subclass(Lazy),
        lambda x: torch._neg_view(-x - 1),
        lambda x: torch.stack([x, x + 1], 1)[:, 1],
        lambda x: x.add_(1),
    ],
)
def test_results_are_copied(function: Callable[[Tensor], object]) -> None:
    assert torch.equal(called(function), torch.arange(4.0) + 1)


def test_outputs_as_arguments() -> None:
    assert called(lambda x, y: None, has_destinations=True).isnan().all()
    assert torch.equal(called(lambda x, y: y.copy_(x), True), torch.arange(4.0))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: None, "is a NoneType"),
        (lambda x: (x, x), "there are 2 results for 1 outputs"),
        (lambda x: {"z": x}, "lacks the outputs"),
    ],
)
def test_results_that_are_no_outputs(function: Callable[[Tensor], object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        called(function)


@pytest.mark.parametrize(
    ("function", "status", "message"),
    [
        (lambda x: x[:3], "INCORRECT_SHAPE", r"has the shape \[3\], not \[4\]"),
        (lambda x: 2.5, "INCORRECT_SHAPE", r"has the shape \[\], not \[4\]"),
        (torch.Tensor.double, "INCORRECT_DTYPE", "has the type float64, not torch.float32"),
    ],
)
def test_outputs_of_other_shapes_and_types(
    function: Callable[[Tensor], object], status: str, message: str
) -> None:
    with pytest.raises(WrongOutput, match=message) as caught:
        called(function)
    assert caught.value.status == status


# --- memory ---------------------------------------------------------------------------------------


def test_memory_that_two_see() -> None:
    dtypes = ("float32", "bfloat16", "float8_e4m3fn", "int8", "bool", "float64")
    specs = [{"name": d, "shape": (3, 2), "dtype": d} for d in dtypes]
    specs += [{"name": "n", "shape": None, "dtype": "float16"}, {**specs[0], "shape": (0, 4)}]
    ours = Memory(specs)
    theirs = Memory(specs, ours.descriptor)
    for one, other, spec in zip(ours.tensors, theirs.tensors, specs, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert one.shape == (spec["shape"] or ())
        one.copy_(torch.randn(one.shape))
        assert bits_equal(one, other)
        assert one.data_ptr() % 64 == 0
    ours.spoil()
    for each in theirs.tensors:
        assert not each.is_floating_point() or each.double().isnan().all()
    with pytest.raises(PermissionError):
        os.ftruncate(ours.descriptor, 1)
    ours.close()


def test_numbers_are_outputs() -> None:
    spec = {"name": "y", "shape": None, "dtype": "int64"}
    place = torch.zeros((), dtype=torch.int64)
    call(lambda: 7, [], [place], [spec], False)
    assert place.item() == 7


# --- inputs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float8_e4m3fn", "int8", "int64", "bool"])
def test_random_inputs_of_each_type(dtype: str) -> None:
    spec = {**X, "shape": [8, 8], "dtype": dtype}
    make = inputs_maker([spec, {**spec, "shape": None}], {}, None)
    (one, number), (two, same), (again, _) = make(1), make(2), make(1)
    assert isinstance(one, Tensor)
    assert str(one.dtype) == f"torch.{dtype}"
    assert torch.equal(one.double(), again.double())  # type: ignore[attr-defined]
    assert not torch.equal(one.double(), two.double())  # type: ignore[attr-defined]
    assert number == same


def test_inputs_from_a_function_are_checked() -> None:
    spec = {**X, "type": "custom"}
    made = inputs_maker([spec], {"n": 4}, lambda axes, device: {"x": torch.randn(axes["n"])})
    assert isinstance(made(0)[0], Tensor)
    for wrong, message in (
        (torch.ones(3), r"float32 of \[3\], not torch.float32 of \[4\]"),
        (1.0, "is not a tensor"),
    ):
        with pytest.raises(ValueError, match=message):
            inputs_maker([spec], {}, lambda axes, device, wrong=wrong: {"x": wrong})(0)
    with pytest.raises(ValueError, match="was not made"):
        inputs_maker([spec], {}, lambda axes, device: {})(0)
    with pytest.raises(ValueError, match="are not a dict"):
        inputs_maker([spec], {}, lambda axes, device: [])(0)


def test_inputs_from_a_file(tmp_path: Path) -> None:
    torch_files = pytest.importorskip("safetensors.torch")
    torch_files.save_file({"a": torch.arange(4.0)}, tmp_path / "x")
    spec = {**X, "type": "safetensors", "path": str(tmp_path / "x"), "key": "a"}
    assert torch.equal(inputs_maker([spec], {}, None)(0)[0], torch.arange(4.0))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is no tensor `b`"):
        inputs_maker([{**spec, "key": "b"}], {}, None)


# --- messages -------------------------------------------------------------------------------------


@pytest.fixture
def sides() -> Iterator[tuple[Channel, Channel, socket.socket]]:
    one, other = sockets()
    with one, other:
        yield Channel(one), Channel(other), other


def test_messages_with_files(sides: tuple[Channel, Channel, socket.socket], tmp_path: Path) -> None:
    ours, theirs, _ = sides
    assert ours.poll() is None
    with (tmp_path / "x").open("w+") as file:
        ours.send({"a": [1, "b"]}, [file.fileno()])
        fields, [number] = theirs.receive()
    assert fields == {"a": [1, "b"]}
    os.write(number, b"text")
    os.close(number)
    assert (tmp_path / "x").read_text() == "text"
    theirs.send({"one": 1})
    theirs.send({"two": 2})
    assert ours.poll() == {"one": 1}
    assert ours.awaited(5) == {"two": 2}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"no", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b'{"text": "' + b"x" * 140_000 + b'"}', "cannot be read"),
        (b"[]", "is no object"),
    ],
)
def test_what_is_no_message(
    sides: tuple[Channel, Channel, socket.socket], raw: bytes, message: str
) -> None:
    ours, _, raw_side = sides
    raw_side.send(raw)
    with pytest.raises(Broken, match=message):
        ours.awaited(5)


def test_a_side_that_is_silent_or_gone(sides: tuple[Channel, Channel, socket.socket]) -> None:
    ours, theirs, _ = sides
    with pytest.raises(TimeoutError):
        ours.awaited(0.01)
    theirs.close()
    with pytest.raises(Broken, match="closed"):
        ours.awaited(5)
    with pytest.raises(Broken):
        ours.send({})


# --- judging --------------------------------------------------------------------------------------

EXACT = Tolerance(0.0, 0.0, 1.0, None)


@pytest.mark.parametrize(
    ("found", "expected", "tolerance", "is_right", "absolute"),
    [
        ([1.0, 2.0], [1.0, 2.0], EXACT, True, 0.0),
        ([1.0, 2.5], [1.0, 2.0], EXACT, False, 0.5),
        ([1.0, 2.5], [1.0, 2.0], Tolerance(0.5, 0.0, 1.0, None), True, 0.5),
        ([1.0, 2.5], [1.0, 2.0], Tolerance(0.0, 0.25, 1.0, None), True, 0.5),
        ([1.0, 2.5], [1.0, 2.0], Tolerance(0.0, 0.0, 0.5, None), True, 0.5),
        ([1.0, 2.5], [1.0, 2.0], Tolerance(0.0, 0.0, 0.5, 0.1), False, 0.5),
        ([math.nan, 1.0], [math.nan, 1.0], EXACT, True, 0.0),
        ([math.nan, 1.0], [0.0, 1.0], Tolerance(9.0, 9.0, 1.0, None), False, math.inf),
        ([0.0, 1.0], [math.nan, 1.0], Tolerance(9.0, 9.0, 1.0, None), False, math.inf),
        ([-math.inf], [-math.inf], EXACT, True, 0.0),
        ([5.0], [math.inf], Tolerance(9.0, 9.0, 1.0, None), False, math.inf),
        ([math.inf], [-math.inf], Tolerance(9.0, 9.0, 1.0, None), False, math.inf),
        ([], [], EXACT, True, 0.0),
    ],
)
def test_errors(
    found: list[float],
    expected: list[float],
    tolerance: Tolerance,
    is_right: bool,
    absolute: float,
) -> None:
    errors, right = compare(torch.tensor(found), torch.tensor(expected), tolerance)
    assert right is is_right
    assert errors.max_absolute_error == absolute
    assert errors.has_nan is any(map(math.isnan, found))
    assert errors.has_inf is any(map(math.isinf, found))


# --- traces ---------------------------------------------------------------------------------------


def test_trace_lines_are_appended_whole(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_text('{"cut": ')  # by a run that was interrupted
    errors = Correctness(math.inf, math.nan)
    append([Trace("d", {"uuid": "w"}, "s", Status.INCORRECT_NUMERICAL, "why", errors)], path)
    figures = Correctness(), Performance(1.0, 2.0, 2.0)
    append([Trace("d", {}, "s", Status.PASSED, "", *figures)], path)
    append([], path)
    with pytest.raises(PyPMError, match="cannot be written"):
        append([], tmp_path)
    cut, first, second = path.read_text().splitlines()
    assert cut == '{"cut": '
    wrong, passed = (json.loads(line)["evaluation"] for line in (first, second))
    assert wrong["status"] == "INCORRECT_NUMERICAL"
    assert wrong["correctness"]["max_relative_error"] == "Infinity"
    assert wrong["correctness"]["max_absolute_error"] == "NaN"
    assert wrong["performance"] is None
    assert wrong["log"] == "why"
    assert passed["performance"] == {
        "latency_ms": 1.0,
        "reference_latency_ms": 2.0,
        "speedup_factor": 2.0,
    }
    assert passed["environment"]["libs"]["torch"] == torch.__version__


def test_traces_as_a_table() -> None:
    passed = Performance(2.0, 8.0, 4.0)
    workload = {"uuid": "w", "axes": {"rows": 8}}
    found = table(
        [
            Trace(
                *("d", workload, "pypm", Status.PASSED),
                correctness=Correctness(),
                performance=passed,
                score=Score(0.75, ("the time is below the bound",)),
                bound_ms=1.0,
                baseline_ms=4.0,
                speedup=2.0,
                rules=("sdpa",),
            ),
            Trace("d", {"uuid": "w"}, "other", Status.TIMEOUT, "first\nlast"),
        ]
    )
    assert found == dedent(
        """\
        workload  version    median  over compiled  at best  score
        rows=8    pypm     2.000 ms          2.00x     1 ms   0.75  sdpa
        w         other     TIMEOUT              -        -      -

        rows=8, pypm: the time is below the bound

        w, other: TIMEOUT
          first
          last"""
    )
