"""Products with gathered weights become grouped ones; gathers that look like them are left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.fx import Report, rewrite
from pypm.integrations import export
from pypm.rules import experts
from tests.axes import axes
from tests.rules.capture import WAYS, hooked

torch.set_num_threads(1)

T, K, E, D, H = 6, 2, 4, 8, 10
"""Tokens, experts of each, experts, widths."""
Function = Callable[..., Any]


def operands(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    made = torch.Generator().manual_seed(0)
    shapes = (T, D), (E, H, D), (E, H, D), (E, H)
    x, up, down, bias = (torch.randn(s, generator=made, dtype=torch.float64) for s in shapes)
    ids = torch.randint(-E, E, (T, K), generator=made)
    return [*(t.to(dtype) for t in (x, up, down, bias)), ids]


# --- spellings -----------------------------------------------------------------------------------


def as_columns(x: Tensor, up: Tensor, down: Tensor, bias: Tensor, ids: Tensor) -> Tensor:
    """As transformers writes it, with the bias added in place."""
    at = ids.reshape(-1)
    h = torch.bmm(up[at], x.repeat_interleave(K, 0).unsqueeze(-1)).squeeze(-1)
    h.add_(bias[at])
    y = torch.bmm(down.transpose(1, 2)[at], F.silu(h).unsqueeze(-1)).squeeze(-1)
    return y.view(T, K, -1).sum(1)


def as_rows(x: Tensor, up: Tensor, down: Tensor, bias: Tensor, ids: Tensor) -> Tensor:
    at = ids.reshape(-1)
    h = torch.bmm(x.repeat_interleave(K, 0).unsqueeze(1), up[at].transpose(1, 2)).squeeze(1)
    h = F.gelu(h + bias[at])
    return torch.bmm(h.unsqueeze(1), down[at]).squeeze(1).view(T, K, -1).sum(1)


def of_all_choices(x: Tensor, up: Tensor, down: Tensor, bias: Tensor, ids: Tensor) -> Tensor:
    """The experts of a token in a dimension of their own."""
    h = (up[ids] @ x[:, None, :, None]).squeeze(-1) + bias[ids]
    return (h.relu()[..., None, :] @ down[ids]).squeeze(-2).sum(1)


def of_one_expert(x: Tensor, up: Tensor, down: Tensor, bias: Tensor, ids: Tensor) -> Tensor:
    at = ids[:, 0].int()
    h = torch.matmul(up[at], x[..., None])[..., 0] + bias[at]
    return torch.matmul(down[at].transpose(1, 2), h.tanh()[..., None])[..., 0]


SPELLINGS: Final = {f.__name__: f for f in (as_columns, as_rows, of_all_choices, of_one_expert)}


def fired(report: Report) -> int:
    assert len(report) == report.count("grouped_experts"), report
    return len(report)


@axes(name=SPELLINGS, way=WAYS)
def test_spellings(name: str, way: str) -> None:
    function, args = SPELLINGS[name], operands()
    report, result = WAYS[way](function, args, experts.RULES)
    assert fired(report) == 2, report
    torch.testing.assert_close(result, function(*args), atol=1e-12, rtol=1e-12)


@axes(name=SPELLINGS, stage=["pre_grad", "joint"])
def test_spellings_at_the_hooks(name: str, stage: str) -> None:
    function, args = SPELLINGS[name], operands()
    report, result = hooked(function, args, experts.RULES, stage)
    assert fired(report) == 2, report
    torch.testing.assert_close(result, function(*args), atol=1e-12, rtol=1e-12)


def test_einsum_below_autograd() -> None:
    """It joins the rows of a token's experts."""

    def function(x: Tensor, up: Tensor, ids: Tensor) -> Tensor:
        return torch.einsum("tkhd,td->tkh", up[ids], x)

    x, up, _, _, ids = operands()
    report, result = WAYS["decomposed"](function, [x, up, ids], experts.RULES)
    assert fired(report) == 1
    torch.testing.assert_close(result, function(x, up, ids), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", SPELLINGS)
def test_gradients(name: str) -> None:
    *args, ids = operands()
    args = [x.requires_grad_() for x in args]
    report, result = hooked(SPELLINGS[name], [*args, ids], experts.RULES, "pre_grad")
    assert fired(report) == 2, report
    ours, theirs = (
        torch.autograd.grad(y.cos().sum(), args) for y in (result, SPELLINGS[name](*args, ids))
    )
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("dtype", "count"), [(torch.float16, 2), (torch.float8_e5m2, 0)], ids=str)
def test_as_on_a_gpu(dtype: torch.dtype, count: int) -> None:
    gm = make_fx(as_rows, tracing_mode="fake")(*operands(dtype))
    assert fired(rewrite(gm, experts.RULES)) == count


def test_any_number_of_tokens() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor, w: Tensor, ids: Tensor) -> Tensor:
            rows = torch.bmm(w[ids[:, 0]], x.unsqueeze(-1)).squeeze(-1)
            return rows + (x[:, None, None] @ w[ids].mT).squeeze(-2).sum(1)

    x, w, _, _, ids = operands()
    tokens = torch.export.Dim("tokens")
    shapes = ({0: tokens}, None, {0: tokens})
    program = torch.export.export(Model(), (x, w, ids), dynamic_shapes=shapes)
    report = export.rewrite(program, experts.RULES)
    assert fired(report) >= 1
    for count in (1, 3, T):
        given = x[:count], w, ids[:count]
        torch.testing.assert_close(program.module()(*given), Model()(*given))


@axes(way=["export", "decomposed"], wrong=[E, -E - 1])
def test_an_expert_that_does_not_exist(way: str, wrong: int) -> None:
    gm = make_fx(as_rows, pre_dispatch=way == "export")(*operands())
    assert fired(rewrite(gm, experts.RULES)) == 2
    *args, ids = operands()
    ids[1, 1] = wrong
    for function in (as_rows, gm):
        with pytest.raises(IndexError, match="out of bounds"):
            function(*args, ids)


@pytest.mark.parametrize("of_columns", [False, True])
@pytest.mark.parametrize(("width", "out"), [(0, 5), (4, 0), (0, 0)])
def test_empty_weights_are_left_alone(width: int, out: int, of_columns: bool) -> None:
    def function(x: Tensor, w: Tensor, ids: Tensor) -> Tensor:
        return w[ids].mT @ x.unsqueeze(2) if of_columns else x.unsqueeze(1) @ w[ids]

    args = [torch.ones(3, width), torch.ones(2, width, out), torch.tensor([0, 1, 1])]
    report, result = WAYS["export"](function, args, experts.RULES)
    assert fired(report) == 0
    torch.testing.assert_close(result, function(*args))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_narrow_types(dtype: torch.dtype) -> None:
    args = operands(dtype)
    report, result = WAYS["export"](of_one_expert, args, experts.RULES)
    assert fired(report) == 2 and result.dtype == dtype
    exact = of_one_expert(*(x.double() for x in args[:-1]), args[-1])
    tolerance = 32 * torch.finfo(dtype).eps
    torch.testing.assert_close(result.double(), exact, atol=tolerance, rtol=tolerance)


# --- near misses ---------------------------------------------------------------------------------


def embedded(x: Tensor, up: Tensor, ids: Tensor) -> Tensor:
    """Rows of a table are the matrix."""
    return x[:, None, :K] @ up[0, :, :][ids]


def by_two_indices(x: Tensor, up: Tensor, ids: Tensor) -> Tensor:
    return torch.bmm(up[None][ids[:, 0] * 0, ids[:, 0]], x[..., None])


def of_another_dimension(x: Tensor, up: Tensor, ids: Tensor) -> Tensor:
    return torch.bmm(up.transpose(0, 1)[:, ids[:, 0]].transpose(0, 1), x[..., None])


def by_truth_values(x: Tensor, up: Tensor, ids: Tensor) -> Tensor:
    return torch.bmm(up[torch.tensor([True, False, True, True])], x[:3, :, None])


def several_rows(x: Tensor, up: Tensor, ids: Tensor) -> Tensor:
    return torch.bmm(up[ids[:, 0]], torch.stack([x, x.cos()], -1))


def for_all_tokens(x: Tensor, up: Tensor, ids: Tensor) -> Tensor:
    """Each gathered matrix by every token."""
    return up[ids[:, 0]] @ x[:, None, :, None]


def other_dimensions(x: Tensor, up: Tensor, ids: Tensor) -> Tensor:
    return torch.bmm(up[ids[:, 0]].permute(2, 1, 0), x.t().unsqueeze(-1))


def regrouped(x: Tensor, up: Tensor, ids: Tensor) -> Tensor:
    """The elements of each matrix in other rows."""
    return torch.bmm(up[ids[:, 0]].reshape(T, D, H), x[:, :1].expand(T, H)[..., None])


def by_joined_rows(x: Tensor, up: Tensor, ids: Tensor) -> Tensor:
    """A sum over a token's experts."""
    return torch.bmm(x.repeat(1, 3)[:, None, : K * H], up[ids].reshape(T, K * H, D))


def changed(x: Tensor, up: Tensor, ids: Tensor) -> Tensor:
    return torch.bmm(up[ids[:, 0]].relu(), x[..., None])


def of_integers(x: Tensor, up: Tensor, ids: Tensor) -> Tensor:
    return torch.bmm(up.long()[ids[:, 0]], x.long()[..., None])


def cut(x: Tensor, up: Tensor, ids: Tensor) -> Tensor:
    """Each matrix has rows of several experts."""
    return torch.bmm(up[ids[:, 0]].reshape(H, T, D), x.repeat(2, 1)[:H, :, None])


NEAR: Final = {
    f.__name__: f
    for f in (
        embedded,
        by_two_indices,
        of_another_dimension,
        by_truth_values,
        several_rows,
        for_all_tokens,
        other_dimensions,
        regrouped,
        by_joined_rows,
        changed,
        of_integers,
        cut,
    )
}


@axes(name=NEAR, way=["export", "decomposed"])
def test_near_misses(name: str, way: str) -> None:
    function = NEAR[name]
    x, up, _, _, ids = operands()
    report, result = WAYS[way](function, [x, up, ids], experts.RULES)
    assert fired(report) == 0, report
    torch.testing.assert_close(result, function(x, up, ids))


@pytest.mark.parametrize("way", ["export", "decomposed"])
def test_weights_that_are_written_in_between(way: str) -> None:
    def function(x: Tensor, up: Tensor, ids: Tensor) -> Tensor:
        up = up.clone()
        gathered = up[ids[:, 0]]
        up.mul_(2)
        return torch.bmm(gathered, x[..., None]) + up.sum()

    x, up, _, _, ids = operands()
    _, result = WAYS[way](function, [x, up, ids], experts.RULES)
    torch.testing.assert_close(result, function(x, up, ids))


@pytest.mark.parametrize("way", ["export", "decomposed"])
def test_gathered_weights_that_are_read_elsewhere(way: str) -> None:
    """The gather would stay; in joint graphs the backward pass reads it."""

    def function(x: Tensor, up: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        gathered = up[ids[:, 0]]
        return torch.bmm(gathered, x[..., None]), gathered.sum()

    x, up, _, _, ids = operands()
    report, _ = WAYS[way](function, [x, up, ids], experts.RULES)
    assert [refusal.kind for refusal in report.refusals] == ["escape"]
    assert fired(report) == 0
