"""Graphs inside the transforms of `torch.func`, whose tensors hide their storages."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from pypm.fx import PRE_GRAD, rewrite
from pypm.fx.values.metadata import metadata, storage
from tests.fx.small_rules import TIDY


def loss(x: Tensor) -> Tensor:
    return (x * 1).view(x.shape).view(x.shape).tanh().sum()


TRANSFORMED: dict[str, Callable[[Tensor], Tensor]] = {
    "grad": lambda x: torch.func.grad(loss)(x) * 1,
    "grad of grad": torch.func.grad(lambda y: torch.func.grad(loss)(y).sum()),
    "vmap": lambda x: torch.func.vmap(loss)(x) * 1,
    "vmap of grad": torch.func.vmap(torch.func.grad(loss)),
    "jvp": lambda x: torch.func.jvp(loss, (x,), (x,))[1],
    "vjp": lambda x: torch.func.vjp(loss, x)[1](torch.ones((), dtype=x.dtype))[0],
    "jacobian": torch.func.jacrev(lambda y: (y * 1).tanh()),
    "hessian": torch.func.hessian(loss),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", TRANSFORMED)
def test_graphs_of_transforms_are_rewritten(name: str) -> None:
    fired: list[str] = []

    def backend(gm: fx.GraphModule, _: object) -> Callable[..., object]:
        fired.extend(each.rule for each in rewrite(gm, TIDY, dialect=PRE_GRAD).rewrites)
        return gm.forward

    x = torch.randn(2, 3, dtype=torch.float64)
    function = TRANSFORMED[name]
    actual = torch.compile(function, backend=backend)(x)
    assert "same" in fired
    torch.testing.assert_close(actual, function(x), rtol=0, atol=0)


def test_tensors_without_a_known_storage() -> None:
    x = torch.eye(2)
    assert storage(x) == storage(x.t()) != storage(x.clone())
    assert storage(x.to_sparse()) is None
    seen = torch.func.vmap(lambda row: torch.full((), storage(row) is None))(x)
    assert seen.all()


def test_what_a_transform_hides_may_be_a_view() -> None:
    """A tensor that hides its storage may share memory with the one that it was made of, so a
    write between the nodes of a match parts it.
    """
    kept: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, _: object) -> Callable[..., object]:
        kept.append(gm)
        rewrite(gm, TIDY, dialect=PRE_GRAD)
        return gm.forward

    def written(row: Tensor) -> Tensor:
        copy = row * 2
        kept_row = copy.view(row.shape) * 1
        copy.add_(1)
        return kept_row + copy

    x = torch.randn(2, 3, dtype=torch.float64)
    actual = torch.compile(torch.func.vmap(written), backend=backend)(x)
    torch.testing.assert_close(actual, torch.func.vmap(written)(x), rtol=0, atol=0)
    values = [metadata(node) for node in kept[0].graph.nodes]
    assert any(isinstance(value, Tensor) and storage(value) is None for value in values)
