"""Which nodes stand for a number, and which one: what their tensor holds when the graph runs."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import pattern, rule
from pypm.core.guards import equal
from pypm.core.terms import UNDEFINED
from pypm.fx import aten, find, rewrite
from pypm.fx.subject.view import View
from tests.fx.small_rules import same

MAKERS: list[Callable[[complex, torch.dtype | None], Tensor]] = [
    lambda value, dtype: torch.full((), value, dtype=dtype),
    lambda value, dtype: torch.scalar_tensor(value, dtype=dtype),
    lambda value, dtype: torch.tensor(value, dtype=dtype),
    lambda value, dtype: torch.ops.prims.scalar_tensor(
        value, dtype=dtype or torch.float32, device="cpu"
    ),
]
DTYPES = [
    None, torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64,
]  # fmt: skip
NUMBERS = [2.7, -2.7, 0.1, -0.0, 1e9, 70000.0, math.inf, math.nan, 3, -1, 300, True]


def value_of(module: fx.GraphModule) -> object:
    (output,) = module.graph.find_nodes(op="output")
    return View(module.graph).occurrence(output.args[0]).attribute("value")


def traced(make: Callable[..., Tensor], *arguments: object) -> fx.GraphModule:
    return make_fx(lambda: make(*arguments))()


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_literal_is_what_its_tensor_holds(
    make: Callable[[complex, torch.dtype | None], Tensor], dtype: torch.dtype | None
) -> None:
    compared = 0
    for number in NUMBERS:
        try:
            held = make(number, dtype).item()
        except RuntimeError:  # torch has no such tensor
            continue
        found = value_of(traced(make, number, dtype))
        assert (type(found), repr(found)) == (type(held), repr(held))
        compared += 1
    assert compared >= 4


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_literal_of_a_graph_without_types(dtype: torch.dtype | None) -> None:
    for target in (torch.full, torch.ops.aten.full.default):
        graph = fx.Graph()
        graph.output(graph.call_function(target, ((), 2.7), {"dtype": dtype}))
        held = torch.full((), 2.7, dtype=dtype).item()
        assert repr(value_of(fx.GraphModule({}, graph))) == repr(held)


def test_a_size_is_a_number_where_its_type_holds_it() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        dtypes = (torch.int64, torch.float32, torch.uint8, torch.float16, torch.bool)
        return tuple(torch.full((), x.shape[0], dtype=dtype) for dtype in dtypes)

    module = make_fx(function, tracing_mode="symbolic")(torch.ones(5))
    view = View(module.graph)
    (x,) = module.graph.find_nodes(op="placeholder")
    (results,) = module.graph.output_node().args
    found = [view.occurrence(node).attribute("value") for node in results]
    (size,) = view.occurrence(x).attribute("shape")
    assert [equal(value, size) for value in found[:2]] == [True, True]
    assert found[2:] == [UNDEFINED] * 3


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * torch.full((), 1.7, dtype=torch.int32),
        lambda x: x * torch.full((), 1.3, dtype=torch.int64),
    ],
)
def test_a_number_that_torch_cuts_off_changes_nothing(
    function: Callable[[Tensor], Tensor],
) -> None:
    x = torch.randn(4)
    module = make_fx(function)(x)
    assert rewrite(module, same).count("same") == 1
    torch.testing.assert_close(module(x), function(x), rtol=0, atol=0)


class Buffers(torch.nn.Module):
    """Buffers and attributes that are called as tracing calls what it lifts."""

    def __init__(self, name: str, registered: bool) -> None:
        super().__init__()
        self.name = name
        if registered:
            self.register_buffer(name, torch.tensor(1.0))
        else:
            setattr(self, name, torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        held: Tensor = getattr(self, self.name)
        return x * held


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize(
    "name", ["tensor_0", "_tensor_constant0", "lifted_tensor_0", "_lifted_tensor_constant1"]
)
def test_what_a_model_holds_is_no_number_whatever_its_name(name: str, registered: bool) -> None:
    x = torch.randn(4)
    module = fx.symbolic_trace(Buffers(name, registered))
    assert not len(rewrite(module, same))
    module.load_state_dict({name: torch.tensor(3.0)}, strict=False)
    held = [value for value in module.buffers() if value == 3.0]
    torch.testing.assert_close(module(x), x * 3 if held else x)


@pytest.mark.parametrize("name", ["tensor_0", "lifted_tensor_0"])
def test_what_an_exported_model_registers_is_no_number(name: str) -> None:
    x = torch.randn(4)
    module = torch.export.export(Buffers(name, registered=True), (x,)).module()
    assert not len(rewrite(module, same))
    module.load_state_dict({name: torch.tensor(3.0)})
    torch.testing.assert_close(module(x), x * 3)


def test_what_an_exported_program_lifts_is_a_number() -> None:
    class Once(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.tensor(1.0)

    program = torch.export.export(Once(), (torch.randn(4),)).run_decompositions()
    module = program.module()
    (node,) = module.graph.find_nodes(op="get_attr")
    assert View(module.graph).occurrence(node).attribute("value") == 1.0


# --- numbers that are trained -------------------------------------------------------------------


def trained() -> list[Tensor]:
    leaf = torch.tensor(1.0, requires_grad=True)
    return [leaf, torch.nn.Parameter(torch.tensor(1.0)), leaf * 1]


@pytest.mark.parametrize("scale", trained(), ids=["leaf", "parameter", "computed"])
@pytest.mark.parametrize("trace", [lambda f: make_fx(f)(torch.ones(2)), fx.symbolic_trace])
def test_a_trained_number_is_no_literal(
    scale: Tensor, trace: Callable[..., fx.GraphModule]
) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * scale

    model = Model()
    if isinstance(scale, torch.nn.Parameter):
        model.scale = scale
    module = trace(model)
    assert not len(rewrite(module, same))
    assert module(torch.ones(2)).requires_grad


def test_a_number_made_to_be_trained_is_no_literal() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    made = graph.call_function(torch.full, ((), 1.0), {"requires_grad": True})
    graph.output(graph.call_function(torch.mul, (x, made)))
    assert View(graph).occurrence(made).attribute("value") is UNDEFINED


@pattern
def Relu(x):
    return aten.relu(x)


@pytest.mark.parametrize("scale", trained()[:2], ids=["leaf", "parameter"])
@pytest.mark.parametrize("trace", [lambda f: make_fx(f)(torch.ones(2)), fx.symbolic_trace])
def test_a_body_keeps_the_trained_numbers_that_it_closes_over(
    scale: Tensor, trace: Callable[..., fx.GraphModule]
) -> None:
    @rule(Relu)
    def scaled(x):
        return torch.clamp(x, min=0) * scale

    def model(x: Tensor) -> Tensor:
        return torch.relu(x)

    module = trace(model)
    assert len(rewrite(module, scaled)) == 1
    result = module(torch.tensor([-1.0, 3.0]))
    (gradient,) = torch.autograd.grad(result.sum(), scale)
    assert gradient == 3.0


@pattern
def NotAtMost(x, c, y):
    return aten.bitwise_not(x * c <= y)


@rule(NotAtMost)
def greater(x, c, y):
    return x * c > y


@pattern
def OtherThanItself(x):
    return aten.bitwise_xor(x, x)


@rule(OtherThanItself)
def nothing(x):
    return torch.zeros_like(x)


def in_a_wide_type(x: Tensor) -> Tensor:
    return ~(x * torch.tensor(0.1, dtype=torch.float64) <= 0.3)


def of_two_types(x: Tensor) -> Tensor:
    y = x[0] * torch.full((), 0.1)
    return (y <= torch.full((), 0.1, dtype=torch.float64)) ^ (y <= 0.1)


@pytest.mark.parametrize(
    ("function", "x"), [(in_a_wide_type, torch.arange(8)), (of_two_types, torch.ones(2))]
)
def test_a_number_in_a_tensor_decides_the_type(
    function: Callable[[Tensor], Tensor], x: Tensor
) -> None:
    module = make_fx(function)(x)
    rewrite(module, (greater, nothing))
    assert torch.equal(module(x), function(x))


def test_it_does_so_by_the_default_type_too() -> None:
    def function(x: Tensor) -> Tensor:
        return ~(x * torch.tensor(0.1, dtype=torch.float32) <= 0.3)

    x = torch.arange(8)
    torch.set_default_dtype(torch.float64)
    try:
        module = make_fx(function)(x)
        rewrite(module, greater)
        assert torch.equal(module(x), function(x))
    finally:
        torch.set_default_dtype(torch.float32)


@pattern
def OverZero(x):
    return x / 0.0


def test_zeros_of_both_signs_are_two_numbers() -> None:
    functions = (lambda x: x / 0.0, lambda x: x / -0.0, lambda x: x / 0)
    found = [list(find(fx.symbolic_trace(function), OverZero)) for function in functions]
    assert [len(matches) for matches in found] == [1, 0, 1]
