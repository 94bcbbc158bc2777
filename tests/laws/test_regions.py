"""Tile programs of regions compute what the regions do, for all sizes.

Proofs about the rules of products take this for granted: a program is compiled from nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.fx import find
from pypm.kernels.support.lowering import _OPERATORS
from pypm.kernels.support.pointwise import OPERATIONS
from pypm.laws.equations import compared
from pypm.rules.tiles import Epilogue
from pypm.tiles.operator import reference
from pypm.tiles.regions import tile_region
from tests.laws.sides import between

M, N, K = 7, 5, 3
BF16: Final = torch.bfloat16
X, S = torch.rand(M, K, dtype=BF16), torch.rand(M, N, dtype=BF16)
INNER, TURNED = torch.rand(K, N, dtype=BF16), torch.rand(N, K, dtype=BF16)
ROW, COLUMN = torch.rand(N, dtype=BF16), torch.rand(M, 1, dtype=BF16)
BATCHED = torch.rand(2, M, K, dtype=BF16)
aten = torch.ops.aten

Function = Callable[..., Tensor]


def compiles_right(function: Function, given: Sequence[Tensor]) -> bool:
    """Whether the program of a function computes what it does, for all sizes."""
    module = make_fx(function)(*given)
    found = find(module, Epilogue)
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    nodes = found[0].region.nodes if found else calls  # with what the rule absorbs

    def by_program(*given: Tensor) -> Tensor:
        class Recorded(fx.Interpreter):
            def run_node(self, n: fx.Node) -> object:
                n.meta["val"] = found = super().run_node(n)
                return found

        result = Recorded(module).run(*given)
        region = tile_region(nodes)
        operands = region.matrices(lambda node: node.meta["val"])
        (found,) = reference([*operands.values()], str(region.program), ())
        return found.view(result.shape)

    def by_nodes(*given: Tensor) -> Tensor:
        return fx.Interpreter(module).run(*given)

    return compared(between(by_nodes, by_program, given)) is None


# --- operators -----------------------------------------------------------------------------------

SPECIAL: Final[dict[str, Function]] = {
    "add": lambda y, s: aten.add(y, s, alpha=3),
    "clamp": lambda y, s: y.clamp(-1.0, 2.0) + y.clamp(max=1.0),
    "hardtanh": lambda y, s: aten.hardtanh(y, -2.0, 3.0),
    "leaky_relu": lambda y, s: aten.leaky_relu(y, 0.25),
    "masked_fill": lambda y, s: y.masked_fill(s > 0, -1.0),
    "pow": lambda y, s: y**2 + y**3 + y**4 + (y * y) ** 0.5 + (y * y) ** -0.5 + y**-1,
    "relu6": lambda y, s: aten.hardtanh(y, 0.0, 6.0),
    "sub": lambda y, s: aten.sub(y, s, alpha=3) - aten.sub(s, y),
    "gelu": lambda y, s: F.gelu(y) + F.gelu(y, approximate="tanh"),
    "where": lambda y, s: torch.where(y > s, y * 2, s),
}


def of_operator(name: str) -> Function:
    """A function of a product and another tensor, with this operator of the table."""
    if name in SPECIAL:
        return SPECIAL[name]
    operator = getattr(aten, name)
    plain = name.removeprefix("bitwise_").removeprefix("logical_")
    takes, gives = OPERATIONS[plain].takes, OPERATIONS[plain].gives
    if takes == "n":
        return lambda y, s: operator(y * y) * s  # of what is above zero
    if gives == "n":
        return lambda y, s: operator(y, s) * operator(s, y)
    if takes == "nn":
        return lambda y, s: torch.where(operator(y, s), y, s)
    conditions = (lambda y, s: (y > 0, s > 0)) if takes == "bb" else (lambda y, s: (y > 0,))
    return lambda y, s: torch.where(operator(*conditions(y, s)), y, s)


NAMES: Final = sorted(
    name.removeprefix("aten.") for name in _OPERATORS if hasattr(aten, name.removeprefix("aten."))
)


@pytest.mark.parametrize("name", NAMES)
def test_operators(name: str) -> None:
    operator = of_operator(name)
    assert compiles_right(lambda x, w, s: operator(aten.mm(x, w), s), (X, INNER, S))


# --- products ------------------------------------------------------------------------------------

PRODUCTS: Final[dict[str, tuple[Function, Sequence[Tensor]]]] = {
    "mm": (lambda x, w, s: aten.mm(x, w).relu() * s, (X, INNER, S)),
    "mm, turned": (lambda x, w, s: aten.mm(x, w.t()).relu() * s, (X, TURNED, S)),
    "addmm": (lambda b, x, w: aten.addmm(b, x, w).relu(), (ROW, X, INNER)),
    "addmm, turned": (lambda b, x, w: aten.addmm(b, x, w.t()).relu(), (ROW, X, TURNED)),
    "addmm of a matrix": (lambda b, x, w: aten.addmm(b, x, w).relu(), (S, X, INNER)),
    "batches": (lambda x, w, b: (aten.matmul(x, w) + b).relu(), (BATCHED, INNER, ROW)),
    "columns": (lambda x, w, s: aten.mm(x, w) * s, (X, INNER, COLUMN)),
    "in a row": (lambda x, w, b, s: (aten.mm(x, w) + b).sigmoid() * s + b, (X, INNER, ROW, S)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    assert compiles_right(*PRODUCTS[name])


GATED: Final[dict[str, tuple[Function, Sequence[Tensor]]]] = {
    "mm": (lambda x, w, v: aten.mm(x, w).sigmoid() * aten.mm(x, v), (X, INNER, INNER * 2)),
    "a bias": (
        lambda b, x, w, v: aten.mm(x, w).sigmoid() * aten.addmm(b, x, v.t()),
        (ROW, X, INNER, TURNED),
    ),
}


@pytest.mark.parametrize("name", GATED)
def test_two_products_of_the_same_rows(name: str) -> None:
    assert compiles_right(*GATED[name])


def test_a_program_with_another_step_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    function, given = PRODUCTS["mm"]
    monkeypatch.setitem(_OPERATORS, "aten.relu", _OPERATORS["aten.sigmoid"])
    assert not compiles_right(function, given)
