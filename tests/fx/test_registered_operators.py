"""All operators that torch registers: those that change memory, sizes or versions are borders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
import torch
import torch._inductor.inductor_prims
from torch import fx
from torch._ops import OpOverload

from pypm.fx import rewrite
from pypm.fx.operators.effects import is_border
from pypm.fx.subject.view import View
from tests.legality.cases import NEG_TWICE, Planted

ONLY_CHECK: Final = {
    "aten::_assert_async", "aten::_assert_tensor_metadata", "aten::_linalg_check_errors",
    "aten::_validate_compressed_sparse_indices", "aten::_validate_sparse_bsc_tensor_args",
    "aten::_validate_sparse_bsr_tensor_args", "aten::_validate_sparse_compressed_tensor_args",
    "aten::_validate_sparse_coo_tensor_args", "aten::_validate_sparse_csc_tensor_args",
    "aten::_validate_sparse_csr_tensor_args", "c10d::check_for_nan", "prims::_sink_tokens",
    "profiler::_record_function_exit", "static_runtime::fused_equally_split",
}  # fmt: skip
"""Operators without results that write nothing; the last one is of another runtime."""
RESHAPERS: Final = {
    "resize", "resize_as", "resize_as_sparse", "_resize_output", "set", "set_data", "squeeze",
    "unsqueeze", "t", "transpose", "_mkldnn_transpose", "swapdims", "swapaxes", "as_strided",
    "sparse_resize", "sparse_resize_and_clear",
}  # fmt: skip
"""What gives a tensor another shape or other memory, by the names in place without `_`."""


def registered() -> Iterator[tuple[str, OpOverload]]:
    """Yield the overloads of torch, and of what is installed beside it, that take a tensor."""
    for qualified in sorted(torch._C._dispatch_get_all_op_names()):
        name, _, overload = qualified.partition(".")
        namespace, _, bare = name.partition("::")
        packet: Any = getattr(getattr(torch.ops, namespace), bare, None)
        op = getattr(packet, overload or "default", None)
        if isinstance(op, OpOverload) and any(
            "Tensor" in str(a.type) for a in op._schema.arguments
        ):
            yield name, op


def called(op: OpOverload) -> fx.Node:
    """Return a call in which each argument is an input of a graph."""
    graph = fx.Graph()
    given = {a.name: graph.placeholder(f"given_{a.name}") for a in op._schema.arguments}
    args = [given[a.name] for a in op._schema.arguments if not a.kwarg_only]
    kwargs = {a.name: given[a.name] for a in op._schema.arguments if a.kwarg_only}
    return graph.call_function(op, tuple(args), kwargs)


def test_operators_in_place_are_borders() -> None:
    """By torch's names, and if they return nothing: whatever their schemas mark."""
    found = 0
    for name, op in registered():
        is_in_place = name.endswith("_") and not name.endswith("__")
        marked = any(a.is_write for a in op._schema.arguments)
        if is_in_place or marked or (not op._schema.returns and name not in ONLY_CHECK):
            found += 1
            assert is_border(called(op)), op
    assert found > 1000


def test_operators_that_reshape_are_known() -> None:
    found = set()
    for name, op in registered():
        stem = name.partition("::")[2].removesuffix("_")
        writes = op._schema.arguments[0].is_write and not op._schema.arguments[0].is_out
        if writes and stem in RESHAPERS and op is not torch.ops.prims.as_strided.default:
            found.add(stem)
            node = called(op)
            node.graph.output(node)
            assert View(node.graph).reshaped(), op
    assert found == RESHAPERS


@pytest.mark.parametrize("size", [0, 16])
def test_nothing_moves_over_a_change_of_storage(size: int) -> None:
    """Graphs of FSDP2 free and allocate the memory of parameters."""

    def function(x: torch.Tensor) -> torch.Tensor:
        n = torch.ops.aten.neg(x)
        torch.ops.inductor.resize_storage_bytes_(x, size)
        return torch.ops.aten.neg(n)

    gm = fx.symbolic_trace(function)
    (refusal,) = rewrite(gm, (Planted((NEG_TWICE,), (("clone", "x"),)).rule,)).refusals
    assert refusal.kind == "effect"
    assert refusal.reason == "memory may be written between `neg` and `neg_1`"
    x = torch.arange(4.0)
    assert torch.equal(gm(x), torch.arange(4.0))
