"""The kernel of a decoding step: any rows, threads and lengths by one build, against float64."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pypm.events import operator
from pypm.events.checks import checked
from pypm.events.decoder import decoder_graph
from pypm.events.operator import compute, decoder_step, reference
from pypm.events.program import printed
from pypm.kernels.support import native
from pypm.timing import on_threads
from tests.events.steps import CAPACITY, EXPERTS, TOP, Made, made

torch.set_num_threads(1)

POSITIONS = (0, 7, 130, CAPACITY - 1)


def agrees(step: Made, batch: int, position: int) -> tuple[Tensor, ...]:
    found = compute(*step.operands(batch, position, torch.float32), printed(step.step))
    exact = reference(*step.operands(batch, position, torch.float64), printed(step.step))
    for ours, theirs in zip(found, exact, strict=True):
        assert ours.dtype == torch.float32 and ours.is_contiguous()
        torch.testing.assert_close(ours.double(), theirs, atol=1e-5, rtol=1e-5)
    return found


@pytest.mark.parametrize(("gated", "experts"), [(True, False), (False, False), (True, True)])
def test_any_batch_and_length_by_one_program(gated: bool, experts: bool) -> None:
    step = made(gated, experts=experts)
    assert operator.unsupported(torch.ones(1)) is None
    for batch in range(1, 6):
        checked(decoder_graph(step.step), {"B": batch})
        for position in POSITIONS:
            agrees(step, batch, position)


def test_all_rows_to_the_same_experts() -> None:
    """The others have no rows. A program whose experts are fewer than those chosen is refused."""
    step = made(True, experts=True)
    x, tensors = step.operands(4, 7, torch.float64)
    x = 100 * x[:1].expand(x.shape)
    interpreter = operator._Interpreter(x, tensors)
    exact = interpreter.run(printed(step.step))
    for numbers, _ in interpreter.choices.values():
        assert len(numbers.unique()) == TOP < EXPERTS
    narrow = [each if each.dtype == torch.int64 else each.float() for each in tensors]
    for ours, theirs in zip(compute(x.float(), narrow, printed(step.step)), exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=1e-4, rtol=1e-5)
    assert "choices 2 2 5" in printed(step.step)
    with pytest.raises(RuntimeError, match="the kernel requires"):
        compute(x.float(), narrow, printed(step.step).replace("choices 2 2 5", "choices 2 2 6"))


@pytest.mark.parametrize("gated", [True, False])
def test_bfloat16_is_rounded_where_torch_rounds_it(gated: bool) -> None:
    """Keys and values of a layer are those of torch's operators, bit by bit but for sums in another
    order; the result is as near to float64 as theirs.
    """
    step = made(gated, layers=1)
    text = printed(step.step)
    for batch in (1, 5):
        x, tensors = step.operands(batch, 130, torch.bfloat16)
        found, eager = compute(x, tensors, text), reference(x, tensors, text)
        exact = reference(x.double(), [widened(each) for each in tensors], text)
        for ours, theirs in zip(found[1:], eager[1:], strict=True):
            assert ours.dtype == torch.bfloat16
            assert (ours == theirs).double().mean() > 0.98
        error, other = ((each[0] - exact[0]).square().mean() for each in (found, eager))
        assert 0 < error < 1.5 * other


def widened(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


SETS = ("", "-mno-avx512bf16", "-mno-avx512f")
"""Instructions that some processors lack, as options of the compiler."""


@pytest.mark.parametrize("options", SETS)
def test_products_in_bfloat16_by_each_set_of_instructions(tmp_path: Path, options: str) -> None:
    source, library = Path(__file__).with_name("bodies.cpp"), tmp_path / "bodies.so"
    includes = [f"-I{operator.SOURCE.parent}", f"-I{native.HEADERS}"]
    flags = ["-O1", "-std=c++17", "-march=native", "-shared", "-fPIC", *options.split()]
    subprocess.run(["c++", *flags, *includes, str(source), "-o", str(library)], check=True)
    function = ctypes.CDLL(str(library)).product
    made = torch.Generator().manual_seed(0)
    for rows, size, columns, turned in (
        (1, 75, 40, 1),
        (4, 96, 7, 1),
        (3, 75, 40, 0),
        (6, 32, 9, 0),
    ):
        x = torch.randn(rows, size, generator=made).bfloat16()
        w = torch.randn(columns, size, generator=made).bfloat16()
        out = torch.empty(rows, columns, dtype=torch.bfloat16)
        given = w if turned else w.t().contiguous()
        function(*native.arguments([x, given, out, turned, rows, size, columns]))
        exact = x.double() @ w.double().t()
        assert (out == exact.bfloat16()).double().mean() > 0.98
        torch.testing.assert_close(out.double(), exact, atol=1e-2, rtol=2**-8)


@pytest.mark.parametrize(("gated", "experts"), [(True, False), (False, False), (True, True)])
def test_threads_change_no_bit(gated: bool, experts: bool) -> None:
    """The program says how large it is: so large that all threads take part."""
    step = made(gated, layers=3, experts=experts)
    large = printed(step.step).replace(printed(step.step).split()[1], str(2**22), 1)
    given = step.operands(3, 100, torch.float32)
    with on_threads(1):
        expected = compute(*given, large)
    for threads in (2, 4, 2, 1, 4):
        with on_threads(threads):
            for _ in range(40):
                found = compute(*given, large)
                assert all(map(torch.equal, found, expected))


def test_the_operator_as_torch_sees_it() -> None:
    step = made(True, layers=1)
    x, tensors = step.operands(2, 5, torch.float32)
    given = x, tensors, printed(step.step)
    torch.library.opcheck(decoder_step, given, test_utils=("test_schema", "test_faketensor"))


def test_without_a_compiler_torch_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    step = made(True)
    given = *step.operands(2, 5, torch.float32), printed(step.step)
    expected = compute(*given)
    monkeypatch.setattr(native, "library", lambda source: None)
    found = compute(*given)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


# --- what happens around it -----------------------------------------------------------------------


def test_operands_that_do_not_fit_are_refused_and_do_no_harm() -> None:
    step = made(True)
    x, tensors = step.operands(2, 5, torch.float32)
    for place, wrong in ((0, tensors[0][..., 1:]), (1, torch.tensor([1, 2])), (4, torch.ones(3))):
        with pytest.raises(RuntimeError, match="the kernel requires"):
            compute(x, [*tensors[:place], wrong, *tensors[place + 1 :]], printed(step.step))
    for text in ("elements 3", printed(step.step).replace("product 1 2", "product 1 9")):
        with pytest.raises(RuntimeError, match="the kernel requires"):
            compute(x, tensors, text)
    agrees(step, 2, 5)


def test_callers_at_the_same_time() -> None:
    """One has the pool, the others compute alone."""
    steps = [made(True), made(False)]
    expected = {n: agrees(steps[n % 2], 1 + n % 3, 9) for n in range(6)}
    barrier = threading.Barrier(6)

    def call(n: int) -> bool:
        barrier.wait()
        given = steps[n % 2].operands(1 + n % 3, 9, torch.float32)
        results = [compute(*given, printed(steps[n % 2].step)) for _ in range(20)]
        return all(all(map(torch.equal, found, expected[n])) for found in results)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(call, range(6)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_a_fork_has_threads_of_its_own() -> None:
    step = made(True)
    text = printed(step.step)
    large = text.replace(text.split()[1], str(2**22), 1)
    given = step.operands(2, 9, torch.float32)
    with on_threads(2):
        expected = compute(*given, large)
        child = os.fork()
        if not child:
            found = compute(*given, large)
            os._exit(0 if all(map(torch.equal, found, expected)) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert all(map(torch.equal, compute(*given, large), expected))
