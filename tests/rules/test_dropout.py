"""Attention that drops weights in training: fused on request, with draws of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from pypm.fx import Report
from pypm.integrations import export, inductor
from pypm.rules import attention
from tests.axes import axes
from tests.models.build import LAYERS, build, inputs
from tests.rules.capture import as_exported, compile_to_graphs, hooked, traced

torch.set_num_threads(1)

B, H, S, T, D = 2, 4, 5, 7, 8
ALMOST_NEVER: Final = 1e-12
"""A probability so small that nothing is dropped here."""

Attend = Callable[..., Tensor]


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(D)


def plain(q: Tensor, k: Tensor, v: Tensor, p: float) -> Tensor:
    return F.dropout(torch.softmax(scores(q, k), -1), p) @ v


def causal(q: Tensor, k: Tensor, v: Tensor, p: float) -> Tensor:
    hidden = torch.ones(S, T, dtype=torch.bool).triu(1)
    weights = torch.softmax(scores(q, k).masked_fill(hidden, -math.inf), -1)
    return F.dropout(weights, p=p, training=True) @ v


def rounded(q: Tensor, k: Tensor, v: Tensor, p: float) -> Tensor:
    weights = F.softmax(scores(q, k), -1, dtype=torch.float64).type(torch.float64)
    return torch.matmul(torch.dropout(weights, p, True), v)


def grouped(q: Tensor, k: Tensor, v: Tensor, p: float) -> Tensor:
    k, v = (x[:, :2].repeat_interleave(2, 1) for x in (k, v))
    return plain(q, k, v, p)


def flat(q: Tensor, k: Tensor, v: Tensor, p: float) -> Tensor:
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    weights = F.dropout(torch.bmm(q, k.transpose(1, 2)).softmax(-1), p)
    return torch.bmm(weights, v).view(-1, H, S, D)


def by_einsum(q: Tensor, k: Tensor, v: Tensor, p: float) -> Tensor:
    weights = torch.softmax(torch.einsum("bhsd,bhtd->bhst", q, k), -1)
    return torch.einsum("bhst,bhtd->bhsd", F.dropout(weights, p), v)


def native(q: Tensor, k: Tensor, v: Tensor, p: float) -> Tensor:
    return torch.native_dropout(torch.softmax(scores(q, k), -1), p, True)[0] @ v


FORMS: Final = (plain, causal, rounded, grouped, flat, by_einsum, native)


def queries_keys_values(batch: int = B, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """The same for each of the batch."""
    made = torch.Generator().manual_seed(0)
    shapes = (H, S, D), (H, T, D), (H, T, D)
    return [torch.randn(s, generator=made, dtype=dtype).repeat(batch, 1, 1, 1) for s in shapes]


def at(form: Attend, p: float) -> Attend:
    return lambda q, k, v: form(q, k, v, p)


def at_pre_grad(function: Attend, args: Sequence[Tensor], rules: Any) -> tuple[Report, Any]:
    return hooked(function, args, rules, "pre_grad")


WAYS: Final = {"export": as_exported, "symbolic_trace": traced, "pre_grad": at_pre_grad}


@axes(form=FORMS, way=WAYS)
def test_nothing_changes_where_nothing_is_dropped(form: Attend, way: str) -> None:
    args = queries_keys_values()
    report, result = WAYS[way](at(form, ALMOST_NEVER), args, attention.WITH_DROPOUT)
    assert (report.count("sdpa_with_dropout"), len(report), report.unchecked) == (1, 1, 0), report
    torch.testing.assert_close(result, form(*args, ALMOST_NEVER), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_never_unasked(form: Attend) -> None:
    report, _ = as_exported(at(form, 0.5), queries_keys_values(), attention.RULES)
    assert len(report) == 0, report


def fused(form: Attend, p: float, args: Sequence[Tensor]) -> fx.GraphModule:
    """The exported function after the rule."""
    module = torch.nn.Module()
    module.forward = at(form, p)  # type: ignore[method-assign]
    program = torch.export.export(module, tuple(args))
    assert len(export.rewrite(program, attention.WITH_DROPOUT)) == 1
    targets = [str(node.target) for node in program.graph.nodes]
    assert "aten.scaled_dot_product_attention.default" in targets
    assert not any("dropout" in target or "softmax" in target for target in targets), targets
    result: fx.GraphModule = program.module()
    return result


@axes(p=[0.1, 0.5], form=[plain, causal])
def test_the_distribution_is_kept(form: Attend, p: float) -> None:
    """Mean and variance over draws are those of independent drops, for the kernel as for eager.

    What a weight w adds of a value x is w x on average, with variance (w x)^2 p / (1 - p).
    """
    draws = 4000
    q, k, v = queries_keys_values(1)
    weights = form(q, k, torch.eye(T, dtype=v.dtype).expand(1, H, T, T), 0.0)
    mean, variance = weights @ v, weights**2 @ v**2 * p / (1 - p)
    many = [x.expand(draws, -1, -1, -1) for x in (q, k, v)]
    torch.manual_seed(0)
    for drawn in (fused(form, p, many)(*many), form(*many, p)):
        error = drawn.mean(0, keepdim=True) - mean
        assert (error.abs() <= 5 * (variance / draws).sqrt() + 1e-12).all()
        torch.testing.assert_close(drawn.var(0, keepdim=True), variance, rtol=0.25, atol=1e-12)


def test_copies_of_a_key_are_dropped_one_by_one() -> None:
    """Without dropout, copies change nothing; with it, they lower the variance."""

    def copied(q: Tensor, k: Tensor, v: Tensor, p: float) -> Tensor:
        k, v = (x.repeat_interleave(2, 2) for x in (k, v))
        return plain(q, k, v, p)

    targets = [str(n.target) for n in fused(copied, 0.5, queries_keys_values()).graph.nodes]
    assert sum("repeat_interleave" in target for target in targets) == 2


def test_draws_are_anew_each_time_and_follow_the_seed() -> None:
    args = queries_keys_values()
    module = fused(plain, 0.5, args)
    torch.manual_seed(0)
    first, second = module(*args), module(*args)
    torch.manual_seed(0)
    assert torch.equal(module(*args), first)
    assert not torch.equal(first, second)


def test_two_layers_draw_apart() -> None:
    """Equal calls are traced once, and not merged."""

    def twice(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return plain(q, k, v, 0.5), plain(q, k, v, 0.5)

    report, (one, other) = as_exported(twice, queries_keys_values(), attention.WITH_DROPOUT)
    assert report.count("sdpa_with_dropout") == 2
    assert not torch.equal(one, other)


# --- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [ALMOST_NEVER, 0.5])
def test_gradients(p: float) -> None:
    """The output is linear in v for one mask: v times its gradient is the output, summed."""
    args = [x.requires_grad_() for x in queries_keys_values()]
    out = fused(causal, p, args)(*args)
    q, k, v = torch.autograd.grad(out.sum(), args)
    torch.testing.assert_close((v * args[2]).sum(), out.sum())
    assert q.abs().max() > 0.01
    assert k.abs().max() > 0.01
    if p == ALMOST_NEVER:
        eager = torch.autograd.grad(causal(*args, p).sum(), args)
        torch.testing.assert_close((q, k, v), eager)


def loss_and_gradients(call: Any, model: Any, given: dict[str, Tensor]) -> list[Tensor]:
    model.zero_grad()
    loss = call(**given).loss
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


def test_training_gpt2() -> None:
    """At `pre_grad`, with gradients through the kernel."""
    model = build("gpt2", torch.float64, train=True, dropout=ALMOST_NEVER)
    given = inputs(2, labels=True)
    compiled, rewritten = compile_to_graphs(model, attention.WITH_DROPOUT, "pre_grad")
    ours = loss_and_gradients(compiled, model, given)
    assert [r.count("sdpa_with_dropout") for r in rewritten.reports] == [LAYERS]
    torch.testing.assert_close(ours, loss_and_gradients(model, model, given))


@pytest.mark.soak
def test_compiled_training_of_gpt2() -> None:
    """Two steps of `torch.compile` as users write them, down to C++."""
    torch._dynamo.reset()
    seen: list[fx.Graph] = []

    class Watched(inductor.Pass):
        def __call__(self, graph: fx.Graph) -> None:
            super().__call__(graph)
            seen.append(graph)

    model = build("gpt2", train=True, dropout=0.1)
    given = inputs(2, labels=True)
    watched = Watched(attention.WITH_DROPOUT, "pre_grad")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = torch.compile(model, options={**watched.options(), "fx_graph_cache": False})
    losses = []
    for _ in range(4):
        loss, *gradients = loss_and_gradients(compiled, model, given)
        assert all(g.isfinite().all() for g in gradients)
        losses.append(loss.item())
        optimizer.step()
    assert losses[-1] < losses[0]
    kernels = [n for n in seen[0].nodes if n.target is F.scaled_dot_product_attention]
    assert [n.kwargs["dropout_p"] for n in kernels] == [0.1] * LAYERS


# --- near misses ---------------------------------------------------------------------------------


def dropped_scores(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return torch.softmax(F.dropout(scores(q, k), 0.5), -1) @ v


def dropped_twice(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return F.dropout(F.dropout(torch.softmax(scores(q, k), -1), 0.5), 0.5) @ v


def dropped_and_scaled(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return (F.dropout(torch.softmax(scores(q, k), -1), 0.5) * 0.5) @ v


def dropped_everywhere(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return plain(q, k, v, 1.0)


def weights_used_elsewhere(q: Tensor, k: Tensor, v: Tensor) -> Any:
    weights = torch.softmax(scores(q, k), -1)
    return F.dropout(weights, 0.5) @ v, weights


def dropped_weights_used_elsewhere(q: Tensor, k: Tensor, v: Tensor) -> Any:
    weights = F.dropout(torch.softmax(scores(q, k), -1), 0.5)
    return weights @ v, weights.sum(-1)


def mask_used_elsewhere(q: Tensor, k: Tensor, v: Tensor) -> Any:
    weights, mask = torch.native_dropout(torch.softmax(scores(q, k), -1), 0.5, True)
    return weights @ v, mask


def the_mask_as_weights(q: Tensor, k: Tensor, v: Tensor) -> Any:
    mask = torch.native_dropout(torch.softmax(scores(q, k), -1), 0.5, True)[1]
    return mask.to(v.dtype) @ v


def whole_heads(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return F.dropout2d(torch.softmax(scores(q, k), -1), 0.5, True) @ v


def one_mask_for_the_batch(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return F.dropout(torch.softmax(scores(q[:1], k[:1]), -1), 0.5) @ v


def one_mask_for_the_heads(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return F.dropout(torch.softmax(scores(q[:, :1], k[:, :1]), -1), 0.5) @ v


def other_noise(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return F.alpha_dropout(torch.softmax(scores(q, k), -1), 0.5, True) @ v


def no_softmax(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return F.dropout(scores(q, k), 0.5) @ v


NEAR_MISSES: Final = (
    dropped_scores, dropped_twice, dropped_and_scaled, dropped_everywhere,
    weights_used_elsewhere, dropped_weights_used_elsewhere, mask_used_elsewhere,
    the_mask_as_weights, whole_heads, one_mask_for_the_batch, one_mask_for_the_heads, other_noise,
    no_softmax,
)  # fmt: skip


@axes(miss=NEAR_MISSES, way=["export", "symbolic_trace"])
def test_near_misses(miss: Attend, way: str) -> None:
    args = queries_keys_values()
    torch.manual_seed(0)
    report, result = WAYS[way](miss, args, attention.WITH_DROPOUT)
    assert len(report) == 0, report
    torch.manual_seed(0)
    torch.testing.assert_close(result, miss(*args), atol=1e-12, rtol=1e-12)


def test_near_misses_at_pre_grad() -> None:
    def all_of_them(*args: Tensor) -> list[Any]:
        return [miss(*args) for miss in NEAR_MISSES]

    report, _ = at_pre_grad(all_of_them, queries_keys_values(), attention.WITH_DROPOUT)
    assert len(report) == 0, report


@pytest.mark.parametrize("way", WAYS)
def test_dropout_in_place(way: str) -> None:
    """Where it is a write, it stays one."""

    def in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.dropout(torch.softmax(scores(q, k), -1), ALMOST_NEVER, inplace=True) @ v

    args = queries_keys_values()
    report, result = WAYS[way](in_place, args, attention.WITH_DROPOUT)
    assert len(report) == 0, report
    torch.testing.assert_close(result, in_place(*args))


@axes(training=[True, False], way=WAYS)
def test_dropout_that_drops_nothing_is_no_dropout(training: bool, way: str) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.softmax(scores(q, k), -1)
        return F.dropout(weights, 0.0 if training else 0.5, training) @ v

    args = queries_keys_values()
    report, result = WAYS[way](attend, args, attention.WITH_DROPOUT)
    assert (report.count("sdpa"), len(report)) == (1, 1), report
    torch.testing.assert_close(result, attend(*args), atol=1e-12, rtol=1e-12)


def test_values_dropped_before_are_an_input() -> None:
    """What is dropped outside of the attention is dropped as before."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.dropout(torch.softmax(scores(q, k), -1) @ F.dropout(v, 0.5), 0.5)

    args = queries_keys_values()
    torch.manual_seed(0)
    report, result = as_exported(attend, args, attention.WITH_DROPOUT)
    assert (report.count("sdpa"), len(report)) == (1, 1), report
    torch.manual_seed(0)
    torch.testing.assert_close(result, attend(*args), atol=1e-12, rtol=1e-12)


def test_the_joint_graph_is_left_alone() -> None:
    """There dropout is `rand > p`, which the backward pass reads as well."""
    args = [x.requires_grad_() for x in queries_keys_values()]
    report, result = hooked(at(plain, 0.5), args, attention.WITH_DROPOUT, "joint")
    assert len(report) == 0, report
    assert result.requires_grad
