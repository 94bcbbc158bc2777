"""Each operator takes each layout of its operands, and its results lie as its fake says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.compiled import with_vectors
from tests.kernels.adversarial import differing
from tests.kernels.calls import CALLS, Draw, declared_operators, exact
from tests.layouts import DISTINCT, LAYOUTS, OVERLAPPING

torch.set_num_threads(1)

RIGHT = {**DISTINCT, **OVERLAPPING}


def test_each_operator_has_a_call() -> None:
    assert set(CALLS) == declared_operators() - {"mark_stage_end"}


@pytest.mark.parametrize("name", CALLS)
@with_vectors()
def test_layouts(name: str) -> None:
    """Values, strides and memory of results: none is shared with operands or within a result."""
    call = CALLS[name]
    layouts = {"contiguous": LAYOUTS["contiguous"]} if call.compiles else RIGHT
    for layout, changed in layouts.items():
        for seed in range(1 if call.compiles else 3):
            given = call.arguments(Draw(f"{name} {seed}", dtype=torch.float32))
            given = laid_out(given, changed)
            found = call.operator(*given)
            assert differing(tree_leaves(found), tree_leaves(exact(call, given))) is None, layout
            assert placed(found) == placed(of_fakes(name, given)), layout
            results = [x for x in tree_leaves(found) if x.numel()]
            memory = {x.untyped_storage().data_ptr() for x in tree_leaves(given) if is_tensor(x)}
            for x in results:
                assert torch.ops.aten.is_non_overlapping_and_dense(x), layout
                assert x.untyped_storage().data_ptr() not in memory, layout
                memory.add(x.untyped_storage().data_ptr())


@pytest.mark.parametrize("name", CALLS)
def test_no_elements(name: str) -> None:
    """Sizes of 0 have the values and, where there is a backward pass, gradients."""
    call = CALLS[name]
    if call.compiles or name == "paged_attention":
        return
    for seed in range(4):
        given = call.arguments(Draw(f"{seed}", empty=0.4, dtype=torch.float64))
        found = call.operator(*given)
        assert differing(tree_leaves(found), tree_leaves(exact(call, given))) is None
        assert placed(found) == placed(of_fakes(name, given))


def laid_out(given: Any, layout: Callable[[Tensor], Tensor]) -> Any:
    return tree_map_only(Tensor, lambda x: layout(x) if x.is_floating_point() else x, given)


def is_tensor(x: object) -> bool:
    return isinstance(x, Tensor)


def of_fakes(name: str, given: Any) -> Any:
    with FakeTensorMode() as mode:
        return CALLS[name].operator(*tree_map_only(Tensor, mode.from_tensor, given))


def placed(results: Any) -> list[tuple[torch.Size, list[int], torch.dtype]]:
    """Return shapes, strides of what is more than one element, and types."""
    return [
        (
            x.shape,
            [s for n, s in zip(x.shape, x.stride(), strict=True) if n > 1 and x.numel()],
            x.dtype,
        )
        for x in tree_leaves(results)
    ]
