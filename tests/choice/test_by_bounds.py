"""Choices by bounds, for machines that are not at hand."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import PyPMError
from pypm.choice import bounds
from pypm.fx import Report, rewrite
from pypm.rules import attention, tiles


def scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v


def test_the_fused_kernel_moves_fewer_bytes() -> None:
    inputs = [torch.randn(2, 8, 512, 64) for _ in range(3)]
    gm = make_fx(scores, tracing_mode="fake")(*inputs)
    report = rewrite(gm, attention.RULES, choose=bounds("H100"))
    (record,) = report.rewrites
    assert record.rule == "sdpa" and record.worth is not None
    worth = record.worth
    assert worth.before is not None and worth.after is not None and worth.bound is not None
    assert worth.bound <= worth.after < worth.before
    assert "bounds on H100" in str(worth)
    assert torch.allclose(gm(*inputs), scores(*inputs), atol=1e-5)


def test_without_metadata_nothing_is_chosen() -> None:
    gm = make_fx(scores, tracing_mode="fake")(*[torch.randn(2, 8, 16, 64) for _ in range(3)])
    for node in gm.graph.nodes:
        node.meta.clear()
    assert not len(rewrite(gm, attention.RULES, choose=bounds("H100")))


def test_unknown_hardware() -> None:
    with pytest.raises(PyPMError, match="H100"):
        bounds("H1000")


# --- kernels for Hopper --------------------------------------------------------------------------


def layer(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, w)) + r


def by_tiles(rows: int, columns: int, inner: int, hardware: str = "H100") -> Report:
    shapes = ((rows, inner), (columns, inner), (rows, columns))
    with FakeTensorMode():
        args = [torch.empty(shape, dtype=torch.bfloat16) for shape in shapes]
        gm = make_fx(layer)(*args)
    return rewrite(gm, tiles.RULES, choose=bounds(hardware))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((8192, 4096, 4096), None),
        ((8192, 4100, 4096), "the rows of `out` are 8200 bytes apart"),
        ((8192, 4096, 4100), "the rows of `x` are 8200 bytes apart, and 16 must divide that"),
        ((64, 4096, 4096), "full tiles leave some of 132 multiprocessors without work"),
        ((1, 14336, 4096), "full tiles leave some of 132 multiprocessors without work"),
    ],
)
def test_kernels_for_hopper_are_chosen_where_they_run(
    sizes: tuple[int, int, int], reason: str | None
) -> None:
    report = by_tiles(*sizes)
    if reason is None:
        assert [record.rule for record in report.rewrites] == ["product_and_epilogue"]
        return
    assert not len(report)
    assert any(reason in refusal.reason for refusal in report.refusals), str(report)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i = torch.arange(q.shape[2])
    scores = torch.where(i[:, None] >= i, q @ k.mT * 0.125, -torch.inf)
    return torch.softmax(scores, -1) @ v


def routed(x: Tensor, w: Tensor, gates: Tensor) -> Tensor:
    return torch.bmm(x[:, None], w[gates.argmax(-1)].mT)[:, 0]


def norm(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    total = x + y
    return torch.nn.functional.rms_norm(total, w.shape, w, 1e-6), total


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("function", "shapes", "reason"),
    [
        (causal, [(4, 16, 2048, 64)] * 3, None),
        (causal, [(4, 16, 2048, 60)] * 3, "the rows of `q` are 120 bytes apart"),
        (causal, [(1, 8, 512, 64)] * 3, "32 full tiles leave some of 132 multiprocessors"),
        (routed, [(8192, 4096), (8, 2048, 4096), (8192, 8)], None),
        (routed, [(8192, 4092), (8, 2048, 4092), (8192, 8)], "rows of `x` are 8184 bytes apart"),
        (routed, [(64, 4096), (8, 2048, 4096), (64, 8)], "8 full tiles leave some of 132"),
        (norm, [(8192, 4096), (8192, 4096), (4096,)], "1.00 times as fast"),
        (norm, [(64, 4096), (64, 4096), (4096,)], "64 full tiles leave some of 132"),
    ],
)
def test_attention_experts_and_rows_are_chosen_where_they_run(
    function: Callable[..., Tensor], shapes: Sequence[tuple[int, ...]], reason: str | None
) -> None:
    """Rows are what the compiler fuses as well: by bounds they gain nothing."""
    for hardware in ("H100", "A100"):
        with FakeTensorMode():
            args = [torch.empty(shape, dtype=torch.bfloat16) for shape in shapes]
            module = make_fx(function, pre_dispatch=True)(*args)
        report = rewrite(module, tiles.RULES, choose=bounds(hardware))
        assert len(report) == (hardware == "H100" and reason is None), str(report)
        assert hardware == "A100" or reason is None or reason in str(report), str(report)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("hardware", ["A100", "B200", "MI300X"])
def test_kernels_for_hopper_are_not_chosen_elsewhere(hardware: str) -> None:
    report = by_tiles(8192, 4096, 4096, hardware)
    assert not len(report)
    assert "the kernel is for Hopper GPUs" in str(report)
