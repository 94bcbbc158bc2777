"""Parts of workers and of the harness, without processes."""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest
import torch
from torch import Tensor

from pypm import PyPMError
from pypm.cost import Score
from pypm.tools.problems.channel import Broken, Channel, Message
from pypm.tools.problems.formats.workload import Tolerance
from pypm.tools.problems.judging import Expected, compare, tensors_of
from pypm.tools.problems.process import Failed
from pypm.tools.problems.table import table
from pypm.tools.problems.traces import Correctness, Performance, Status, Trace, append
from pypm.tools.problems.worker.calls import Calls, Hack
from pypm.tools.problems.worker.inputs import inputs_maker
from pypm.tools.problems.worker.integrity import Snapshot

X = {"name": "x", "shape": [4], "dtype": "float32", "type": "random"}
Y = {"name": "y", "shape": [4], "dtype": "float32"}


def calls(function: Callable[..., object], has_destinations: bool = False) -> Calls:
    make = inputs_maker([X], {}, None)
    flush = torch.empty(16, dtype=torch.uint8)
    return Calls(function, make, [Y], has_destinations, flush)


def call(found: Calls, seed: int = 0) -> list[Tensor]:
    found.prepare(seed)
    found.run()
    found.settle()
    return [each.data for each in found.outputs()]


# --- calls ----------------------------------------------------------------------------------------


def test_calls_get_copies_of_fresh_inputs() -> None:
    seen: list[Tensor] = []
    found = calls(lambda x: seen.append(x) or x + 1)  # type: ignore[func-returns-value]
    one, two, again = call(found, 1), call(found, 2), call(found, 1)
    assert torch.equal(one[0], again[0])
    assert not torch.equal(one[0], two[0])
    assert len({x.data_ptr() for x in seen}) == 3
    assert found.written(["x"]) == []
    assert found.fit()


def test_outputs_as_arguments_begin_as_wrong_results() -> None:
    [untouched] = call(calls(lambda x, y: None, has_destinations=True))
    assert untouched.isnan().all()
    found = calls(lambda x, y: y.copy_(x), has_destinations=True)
    call(found, 1)
    assert call(found, 1)[0].isfinite().all()


class Lazy(Tensor):
    """Computes when somebody looks."""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.as_subclass(Lazy), "is a Lazy, which may compute later"),
        (torch.nn.Parameter, "is a Parameter"),
        (lambda x: torch.empty(4, device="meta"), "on meta, not computed memory"),
        (lambda x: x.to_sparse(), "torch.sparse_coo"),
        (torch._neg_view, "still to be negated"),
    ],
)
def test_lazy_outputs(function: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(Hack, match=message):
        call(calls(function))


def test_memory_that_is_returned_twice() -> None:
    cached = torch.zeros(4)
    found = calls(cached.copy_)
    call(found, 1)
    with pytest.raises(Hack, match="is the memory that an earlier call returned"):
        call(found, 2)


def test_outputs_that_change_after_the_call() -> None:
    results: list[Tensor] = []
    found = calls(lambda x: results.append(torch.empty(4)) or results[-1])  # type: ignore[func-returns-value]
    found.prepare(0)
    found.run()
    found.settle()
    results[-1].fill_(7)
    with pytest.raises(Hack, match="changed after the call had returned"):
        found.outputs()


@pytest.mark.parametrize(
    "function", [lambda x: x.relu_() + 0.5, lambda x: (x.resize_(2), torch.ones(4))[1]]
)
def test_writes_to_inputs_are_seen(function: Callable[[Tensor], Tensor]) -> None:
    found = calls(function)
    call(found, 3)
    assert found.written(["x"]) == ["x"]


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
        call(calls(function))


def test_results_by_name_and_other_shapes() -> None:
    [found] = call(calls(lambda x: {"y": x + 1}))
    assert found.shape == (4,)
    other = calls(lambda x: x.double())
    call(other)
    assert not other.fit()


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


# --- integrity ------------------------------------------------------------------------------------


def test_functions_that_were_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("mine")
    exec("def one(): pass\ndef two(): pass\nclass Three:\n    def four(self): pass", vars(module))
    snapshot = Snapshot([module])
    assert snapshot.replaced() == []
    with monkeypatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: 0.0)
        assert snapshot.replaced() == ["time.perf_counter"]
    with monkeypatch.context() as patch:
        patch.setattr(torch, "equal", lambda one, other: True)
        assert snapshot.replaced() == ["torch.equal"]
    with monkeypatch.context() as patch:
        patch.setattr(module.one, "__code__", module.two.__code__)
        assert snapshot.replaced() == ["mine.one"]
    with monkeypatch.context() as patch:
        patch.setattr(module.Three, "four", lambda self: None)
        assert snapshot.replaced() == ["mine.Three.four"]
    del module.two
    assert snapshot.replaced() == ["mine.two"]


# --- messages -------------------------------------------------------------------------------------


@pytest.fixture
def sides() -> Iterator[tuple[Channel, Channel, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield Channel(one), Channel(other), other


def test_messages_with_memory(sides: tuple[Channel, Channel, socket.socket]) -> None:
    ours, theirs, _ = sides
    data = torch.arange(4.0)
    theirs.send({"a": [1, "b"]}, [data.numpy().tobytes(), b""])
    found = ours.receive(5, most=16)
    assert found.fields == {"a": [1, "b"]}
    assert torch.equal(torch.frombuffer(found.blocks[0], dtype=torch.float32), data)
    assert found.blocks[1] == b""


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\xff" * 8, "a message of"),
        (b"\0" * 7 + b"\2" + b"no", "cannot be read"),
        (b"\0" * 7 + b"\2" + b"[]", "cannot be read"),
        (b"\0" * 7 + b"\x0e" + b'{"blocks":[1]}', "with 1 bytes where 0 were expected"),
        (b"\0" * 7 + b"\x0f" + b'{"blocks":[-1]}', "with -1 bytes"),
    ],
)
def test_what_is_no_message(
    sides: tuple[Channel, Channel, socket.socket], raw: bytes, message: str
) -> None:
    ours, _, raw_side = sides
    raw_side.sendall(raw)
    with pytest.raises(Broken, match=message):
        ours.receive(5)


def test_a_side_that_is_silent_or_gone(sides: tuple[Channel, Channel, socket.socket]) -> None:
    ours, theirs, raw_side = sides
    raw_side.sendall(b"\0\0")
    with pytest.raises(TimeoutError):
        ours.receive(0.01)
    theirs.close()
    with pytest.raises(Broken, match="closed"):
        ours.receive(5)
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


@pytest.mark.parametrize(
    ("shape", "dtype", "status"),
    [
        ([3], "float32", Status.INCORRECT_SHAPE),
        (None, "float32", Status.INCORRECT_SHAPE),
        ([2], "float64", Status.INCORRECT_DTYPE),
        ([2], "float16", Status.INCORRECT_DTYPE),
    ],
)
def test_outputs_of_other_shapes_and_types(shape: object, dtype: str, status: Status) -> None:
    answer = Message({"outputs": [{"shape": shape, "dtype": dtype}]})
    with pytest.raises(Failed) as caught:
        tensors_of(answer, [Expected("y", (2,), torch.float32)])
    assert caught.value.status is status


@pytest.mark.parametrize("fields", [{}, {"outputs": 3}, {"outputs": []}])
def test_answers_without_outputs(fields: dict[str, object]) -> None:
    with pytest.raises(Broken):
        tensors_of(Message(fields), [Expected("y", (2,), torch.float32)])


def test_numbers_and_empty_outputs() -> None:
    found = calls(lambda x: 2.5)
    [number] = call(found)
    described = [{"shape": None, "dtype": "float32"}, {"shape": [0], "dtype": "int8"}]
    outputs = [Expected("y", None, torch.float32), Expected("z", (0,), torch.int8)]
    blocks = [bytearray(number.numpy().tobytes()), bytearray()]
    read, empty = tensors_of(Message({"outputs": described}, blocks), outputs)
    assert read.item() == 2.5
    assert empty.shape == (0,)


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
