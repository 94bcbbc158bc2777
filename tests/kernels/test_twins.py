"""Twins of operators: generated code calls them, and computes and differentiates what it did."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from pypm import pattern, rule
from pypm.fx import aten
from pypm.integrations.inductor import Pass
from pypm.kernels import libraries
from pypm.kernels.row_linear import row_linear
from pypm.kernels.support import native
from pypm.kernels.support.registration import custom_operator
from pypm.kernels.support.twins import called_for

calls: list[int] = []


def products(x: Tensor, y: Tensor, factor: float) -> list[Tensor]:
    """Return x y factor, as views; torch has nothing to count here, and numpy no gradient."""
    calls.append(len(y))
    result = (x.detach().numpy() * y.detach().numpy()[: len(x)] * factor)[None]
    return [torch.from_numpy(result)[0].view(-1)]


def reference(x: Tensor, y: Tensor, factor: float) -> list[Tensor]:
    return [x * y * factor]


twins = custom_operator(
    "pypm_tests::twins",
    products,
    outputs=lambda x: [torch.empty_like(x)],
    operands={"x": "[n] float", "y": "[n] float"},
    reference=reference,
    flops=lambda x, y, factor, out_shape: 7,
)


def model(x: Tensor, y: Tensor) -> Tensor:
    return twins(x + 1, y, 3.0)[0]


def vectors(*sizes: int) -> list[Tensor]:
    return [torch.arange(1.0, n + 1) for n in sizes]


def called(code: list[str]) -> set[str]:
    """Return the operators of these tests that generated code calls."""
    return set(re.findall(r"= torch\.ops\.(pypm_tests\.\w+)", "".join(code)))


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    calls.clear()


@pytest.mark.parametrize("dynamic", [False, True])
def test_generated_code_calls_a_twin(dynamic: bool) -> None:
    x, y = vectors(3, 3)
    with fresh_cache():
        found, code = run_and_get_code(torch.compile(model, dynamic=dynamic), x, y)
    kind = "checked" if dynamic else "raw"
    assert called(code) == {f"pypm_tests.twins_{kind}"}
    assert found.tolist() == [6, 18, 36]


def test_gradients_are_those_of_the_operator() -> None:
    """A gradient is in the graph; the twin has none."""
    x, y = (v.requires_grad_() for v in vectors(3, 3))
    with fresh_cache():
        found, code = run_and_get_code(torch.compile(model, fullgraph=True), x, y)
    assert "pypm_tests.twins_raw" in called(code)
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert (x.grad.tolist(), y.grad.tolist()) == ([3, 6, 9], [6, 9, 12])  # type: ignore[union-attr]


def test_symbolic_sizes_are_compared_at_run_time() -> None:
    def of_parts(x: Tensor, y: Tensor) -> Tensor:
        return twins(x, y[1:], 3.0)[0]

    compiled = torch.compile(of_parts, dynamic=True)
    with fresh_cache():
        assert compiled(*vectors(3, 4)).tolist() == [6, 18, 36]
        calls.clear()
        with pytest.raises(ValueError, match=r"`y` has the sizes \[8\]; it must have \[3\]"):
            compiled(*vectors(3, 9))
    assert not calls


def test_sizes_that_differ_are_refused_where_they_are_known() -> None:
    with fresh_cache(), pytest.raises(Exception, match=r"`y` has the sizes \[4\]"):
        torch.compile(model, dynamic=False)(*vectors(3, 4))


def test_results_are_views_of_nothing() -> None:
    """Autograd refuses some writes to views that were made without it."""
    x, y = vectors(3, 3)
    with fresh_cache():
        found = torch.compile(model)(x, y)
    assert not found._is_view() and not torch.ops.pypm_tests.twins_raw(x, y, 3.0)[0]._is_view()
    found.add_(torch.ones(3, requires_grad=True)).sum().backward()  # type: ignore[no-untyped-call]


def test_no_wrapper_of_torch_is_in_a_profile() -> None:
    frames = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        frames.add(frame.f_code.co_filename)

    x, y = vectors(3, 3)
    with fresh_cache(), torch.no_grad():
        compiled = torch.compile(model)
        compiled(x, y)
        for function, is_wrapped in ((compiled, False), (twins, True)):
            frames.clear()
            sys.setprofile(note)
            try:
                function(x, y, *((3.0,) if is_wrapped else ()))
            finally:
                sys.setprofile(None)
            assert __file__ in frames
            assert is_wrapped == any("/torch/_library/" in name for name in frames)


def test_operations_are_counted_in_compiled_code() -> None:
    x, y = vectors(3, 3)
    with fresh_cache():
        compiled = torch.compile(model)
        compiled(x, y)
        with FlopCounterMode(display=False) as counter:
            compiled(x, y)
    assert counter.get_total_flops() == 7


def test_code_from_a_cache_calls_the_twin() -> None:
    x, y = vectors(3, 3)
    with fresh_cache():
        for hits in (0, 1):
            torch._dynamo.reset()
            counters.clear()
            assert torch.compile(model)(x, y).tolist() == [6, 18, 36]
            assert counters["inductor"]["fxgraph_cache_hit"] == hits


def test_an_operator_of_a_replacement_becomes_a_twin() -> None:
    for stage in ("joint", "post_grad"):
        torch._dynamo.reset()
        with fresh_cache():
            options = Pass([through_twins], stage).options()
            found, code = run_and_get_code(torch.compile(plain, options=options), *vectors(3, 3))
        assert called(code) == {"pypm_tests.twins_raw"}, stage
        assert found.tolist() == [4, 16, 36]


def plain(x: Tensor, y: Tensor) -> Tensor:
    return x * y * 4


@pattern
def Product(x: Any, y: Any) -> Any:
    return aten.mul(aten.mul(x, y), 4)


@rule(Product)
def through_twins(x: Tensor, y: Tensor) -> Tensor:
    return twins(x, y, 4.0)[0]


def test_graphs_have_the_operator_itself() -> None:
    graph = make_fx(model, tracing_mode="fake")(*vectors(3, 3)).graph
    assert torch.ops.pypm_tests.twins.default in [node.target for node in graph.nodes]


def test_an_operator_that_is_defined_again() -> None:
    x = torch.ones(2)
    with fresh_cache():
        for factor in (2.0, 5.0):
            torch._dynamo.reset()
            operator = custom_operator("pypm_tests::again", scaled_by(factor), outputs=like)
            assert torch.compile(operator)(x).tolist() == [factor, factor]


def like(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def scaled_by(factor: float) -> Callable[[Tensor], Tensor]:
    def scaled(x: Tensor) -> Tensor:
        return x * factor

    return scaled


# --- kernels in C++ ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", libraries.SOURCES)
def test_a_library_and_python_agree_on_the_schema(name: str) -> None:
    """Python defines the operator where PyPM is imported, and the library where it is not."""
    text = libraries.SOURCES[name].read_text(encoding="utf-8")
    (declared,) = re.findall(rf"OPERATOR\({name}_native,\s*(.*?),\s*{name}\)", text, re.DOTALL)
    schema = "".join(re.findall(r'"(.*?)"', declared))
    assert str(getattr(torch.ops.pypm, f"{name}_native").default._schema) == (
        f"pypm::{name}_native{schema}"
    )


def x(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(sizes, dtype=dtype)


def misfits(*given: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments with each tensor in turn of another size, and of another type."""
    for at, one in enumerate(given):
        if isinstance(one, Tensor):
            for other in (one[..., 1:], one.half()):
                yield *given[:at], other, *given[at + 1 :]


def whole(*sizes: int) -> Tensor:
    return x(*sizes, dtype=torch.int64)


def paged(q: Tensor, pages: int) -> tuple[Any, ...]:
    """Arguments of `paged_attention` for queries, and caches of so many pages."""
    caches, table = (x(pages, 2, 2, 8), x(pages, 2, 2, 4)), whole(1, 7)
    return (q, *caches, table, whole(2), whole(1), whole(2), whole(3), whole(2), None)


NUMBERS = (1e-6, 127.0, 1e-5, -128.0, 127.0)
MISFITS: dict[str, list[tuple[Any, ...]]] = {
    "row_linear": [
        (x(1, 7), x(5, 8), None),
        (x(5, 8), x(5, 8), None),
        (x(1, 8), x(5, 8), x(4)),
        (x(1, 8, dtype=torch.bfloat16), x(5, 8), None),
        (x(1, 8).double(), x(5, 8).double(), None),
    ],
    "rotary": [
        ([], x(4), x(4), False),
        ([x(3, 4)], x(4), x(6), False),
        ([x(3, 4)], x(6), x(6), False),
        ([x(3, 4)], x(3), x(3), False),
        ([x(3, 4)], x(2, 4), x(2, 4), False),
        ([x(3, 4)], x(1, 3, 4), x(1, 3, 4), False),
        ([x(3, 4), x(3, 4).double()], x(4), x(4), False),
    ],
    "quantized_norm": [
        (x(2, 0), x(2, 0), None, *NUMBERS),
        (x(2, 3), x(2, 4), None, *NUMBERS),
        (x(2, 3), x(2, 3), x(4), *NUMBERS),
        (x(2, 3), x(2, 3).double(), None, *NUMBERS),
        (x(2, 3).half(), x(2, 3).half(), None, *NUMBERS),
    ],
    "attention_over_cache": [
        (x(1, 2, 1, 4), x(1, 2, 5, 3), x(1, 2, 5, 4), None, 1.0, True),
        (x(1, 2, 1, 4), x(1, 2, 5, 4), x(1, 2, 6, 4), None, 1.0, True),
        (x(1, 3, 1, 4), x(1, 2, 5, 4), x(1, 2, 5, 4), None, 1.0, True),
        (x(1, 2, 1, 4), x(1, 2, 5, 4), x(1, 2, 5, 4), x(1, 1, 1, 6), 1.0, True),
        (x(1, 2, 1, 4), x(1, 2, 5, 4), x(1, 2, 5, 4), x(1, 3, 1, 5), 1.0, True),
        (x(1, 2, 1, 4), x(1, 2, 5, 4), x(1, 2, 5, 4).double(), None, 1.0, True),
    ],
    "linear_attention": [
        (x(5, 3, 4), x(5, 3, 4), x(5, 3, 6), None, None, None, x(3, 4)),
        *misfits(
            *(x(5, 3, 4), x(5, 3, 4), x(5, 3, 6), x(5, 3, 4), x(5, 3, 4), x(5, 3, 6), x(3, 4, 6)),
        ),
    ],
    "scan": [
        *misfits(x(5, 3, 4, 6), x(5, 3, 4, 6), x(5, 3, 6), x(3, 4, 6)),
        (x(1), x(1), x(1), x(1)),
    ],
    "linear_recurrence": [
        *misfits(x(5, 3, 4), x(5, 3, 4), x(3, 4), False),
        (x(), x(), x(), True),
    ],
    "wkv": [*misfits(x(6), x(6), x(3, 5, 6), x(3, 5, 6), x(3, 6), x(3, 6), x(3, 6))],
    "gru": [
        *misfits(x(5, 3, 4), x(18, 4), x(18, 6), x(18), x(18), x(3, 6)),
        (x(0, 3, 4), x(18, 4), x(18, 6), x(18), x(18), x(3, 6)),
    ],
    "rnn": [*misfits(x(5, 3, 6), x(6, 6), x(3, 6), False)],
    "paged_attention": [
        *misfits(*paged(x(2, 4, 8), 3)),
        paged(x(2, 3, 8), 3),
        paged(x(2, 4, 8), 0),
    ],
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_library_reads_no_memory_that_operands_lack(name: str) -> None:
    """Sizes may be symbolic in a graph, so the kernel compares what it reads by."""
    operator = native.operator(libraries.SOURCES[name], f"{name}_native")
    for args in MISFITS[name]:
        with pytest.raises(RuntimeError, match=r"the kernel (requires|is not for)|no plan"):
            operator(*args)


def test_generated_code_calls_the_library() -> None:
    """Also with symbolic sizes; where it does not take the operands, Python's twin."""

    def layer(x: Tensor, weight: Tensor) -> Tensor:
        return row_linear(x, weight, None)

    for rows, dynamic, kind in ((2, False, "native"), (5, False, "raw"), (3, True, "checked")):
        torch._dynamo.reset()
        args = torch.randn(rows, 6), torch.randn(4, 6)
        compiled = torch.compile(layer, dynamic=dynamic)
        with fresh_cache():
            found, (code, *_) = run_and_get_code(compiled, *args)
        assert f"= torch.ops.pypm.row_linear_{kind}.default(" in code
        torch.testing.assert_close(found, torch.nn.functional.linear(*args))


def test_a_call_by_code_from_a_cache_loads_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """And computes what the operator does where there is no compiler."""
    loaded: list[Path] = []
    args = torch.randn(2, 6), torch.randn(4, 6), None
    fallback = torch.ops.pypm.row_linear_native.default.redispatch
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CompositeExplicitAutograd)
    monkeypatch.setattr(native, "library", loaded.append)
    found = fallback(keys, *args)
    assert loaded == [libraries.SOURCES["row_linear"]]
    assert torch.equal(found, torch.nn.functional.linear(*args))


def test_a_choice_times_what_compiled_code_calls() -> None:
    args = torch.randn(2, 6), torch.randn(4, 6)
    graph = make_fx(lambda x, w: row_linear(x, w, None).sin(), tracing_mode="fake")(*args).graph
    called = [called_for(n, n.target) for n in graph.nodes if n.op == "call_function"]
    assert called == [torch.ops.pypm.row_linear_native.default, torch.ops.aten.sin.default]
