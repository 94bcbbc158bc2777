"""Launches of Triton in the graphs of Inductor: its code, interpreted; what stays a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_leaves

from pypm.integrations import inductor, launches
from pypm.kernels.linear_attention import linear_attention
from pypm.kernels.paged.operator import attend
from pypm.kernels.paged.plans import plan
from pypm.kernels.recurrence import linear_recurrence
from pypm.kernels.scan import scan
from pypm.kernels.support import native
from pypm.kernels.support.inlining import inline_launches
from pypm.kernels.wkv import wkv
from tests.kernels import stand_in_triton as gpu
from tests.kernels.triton_checks import needs_gpu, needs_triton


def normal(*shape: int) -> Tensor:
    made = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=made)


def turned(*shape: int) -> Tensor:
    """With other strides than those of a contiguous tensor."""
    return normal(*shape[::-1]).permute(*range(len(shape) - 1, -1, -1))


def paged(q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor) -> Tensor:
    return attend(q, k, v, *tensors, None)


WORK = plan(torch.tensor([[2, 0], [1, 3]]), torch.tensor([3, 4]), pages=4, page_size=2)
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int, int]] = {
    # operator, operands, kernels, tensors that are allocated
    "linear_recurrence": (
        lambda a, b, h: linear_recurrence(a, b, h, True),
        (turned(5, 3, 4).sigmoid(), turned(5, 3, 4), normal(3, 4)),
        1, 1,
    ),
    "scan": (
        scan,
        (turned(5, 2, 3, 4).sigmoid(), normal(5, 2, 3, 4), turned(5, 2, 4), normal(2, 3, 4)),
        1, 2,
    ),
    "wkv": (
        wkv,
        (-normal(6).exp(), normal(6), turned(2, 5, 6), normal(2, 5, 6), *[normal(2, 6).exp()] * 3),
        1, 4,
    ),
    "linear_attention": (
        lambda *x: linear_attention(*x[:4], None, None, x[4]),
        (
            normal(5, 3, 8)[..., :4].sigmoid(), normal(5, 3, 8)[..., :4], normal(5, 3, 6),
            normal(5, 3, 4), normal(3, 4, 6),
        ),
        1, 2,
    ),
    "paged_attention": (
        paged,
        (normal(2, 4, 16), normal(4, 2, 2, 16), normal(4, 2, 2, 16), *WORK.tensors()),
        2, 4,
    ),
}  # fmt: skip


@needs_triton
@pytest.mark.parametrize("name", CASES)
def test_inductor_writes_the_kernels(
    name: str, monkeypatch: pytest.MonkeyPatch, interpreter: Executor
) -> None:
    """Without a copy; all that its code allocates is results, and what kernels pass to others."""
    function, args, kernels, allocated = CASES[name]
    monkeypatch.setattr(native, "library", lambda source: None)  # the references are what is owed
    expected = tree_leaves(function(*args))
    gpu.install(monkeypatch)
    code = gpu.written(gpu.on_a_gpu(function, args), launches.Launches())
    body = code[code.index("def call(") :]
    assert "torch.ops.pypm" not in code and "copy_(" not in body
    assert (body.count(".run("), body.count("empty_strided_cuda(")) == (kernels, allocated)
    found = interpreter.submit(gpu.interpreted, code, args).result()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@needs_gpu
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name: str) -> None:
    """Compiled, the same kernels give the same bits as by the operator."""
    function, args, *_ = CASES[name]
    given = [x.cuda() for x in args]
    compiled = torch.compile(function, options=inductor.options([]), fullgraph=True)
    found, code = run_and_get_code(compiled, *given)
    assert "torch.ops.pypm" not in "".join(code)
    torch.testing.assert_close(
        tree_leaves(found), tree_leaves(function(*given)), rtol=0, atol=0, equal_nan=True
    )


def inlined(function: Callable[..., Any], args: Sequence[Any]) -> int:
    """How many calls of operators on a GPU become launches; a graph without any stays as it is."""
    gm = gpu.on_a_gpu(function, args)
    before, mode = str(gm.graph), gm.graph.find_nodes(op="placeholder")[0].meta["val"].fake_mode
    with V.set_fake_mode(mode):
        count = inline_launches(gm.graph)
    assert count or str(gm.graph) == before
    return count


@needs_triton
def test_what_stays_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other types than the kernel's, nothing to compute, a CPU, and a symbolic size."""
    gpu.install(monkeypatch)

    _, args, *_ = CASES["scan"]
    assert inlined(scan, args) == 1
    assert inlined(scan, [x.double() for x in args]) == 0
    assert inlined(scan, [x[..., :0] for x in args]) == 0
    assert inlined(scan, [x.repeat_interleave(33, -1) for x in args]) == 0
    gm, sizes = gpu.on_a_gpu(scan, args), ShapeEnv()
    with FakeTensorMode(shape_env=sizes):
        x = torch.empty(sizes.create_unbacked_symint(), 2, 3, 4, device="cuda")
    gm.graph.find_nodes(op="placeholder")[0].meta["val"] = x
    assert inline_launches(gm.graph) == 0
    assert inline_launches(make_fx(scan, tracing_mode="fake")(*args).graph) == 0


@needs_triton
def test_a_launch_that_cannot_be_traced_stays_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.install(monkeypatch)
    function, args, *_ = CASES["linear_recurrence"]
    monkeypatch.setattr("pypm.kernels.recurrence.unroll", lambda programs: 1 // 0)
    what = "the launch of `pypm.linear_recurrence.default` cannot be traced, and stays a call: int"
    with pytest.warns(RuntimeWarning, match=what):
        assert inlined(function, args) == 0


def test_options_have_the_pass_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    last = "post_grad_custom_post_pass"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert last not in inductor.options([])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert isinstance(inductor.options([])[last], launches.Launches)

    def others(graph: fx.Graph) -> None:
        pass

    options = inductor.options([], **inductor.options([], **{last: others}))
    first, second = options[last]
    assert first is others and isinstance(second, launches.Launches)
    rules = inductor.Pass([], "post_grad_post")
    first, second = rules.options()[last]
    assert first is rules and isinstance(second, launches.Launches)


def test_the_key_of_the_pass_is_that_of_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    key = launches.Launches().uuid()
    assert key == launches.Launches().uuid()
    monkeypatch.setattr(launches, "sources_hash", lambda: "another kernel")
    assert launches.Launches().uuid() != key
