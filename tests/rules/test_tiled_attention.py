"""Attention as tile programs: where the rules fire, its values, and what they leave alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import RuleSet
from pypm.fx import Report, rewrite
from pypm.rules.tiles.attention import called_tiled_attention, tiled_attention
from pypm.tiles.operator import emulated
from tests.rules.capture import WAYS, fired, hooked, whole_operators
from tests.tiles.cases import TOLERANCES

torch.set_num_threads(1)

RULES: Final = RuleSet(
    tuple(replace(rule, pays="always") for rule in (tiled_attention, called_tiled_attention))
)
B, H, G, S, D = 2, 4, 2, 70, 64
DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}
Function = Callable[..., Tensor]


def inputs(dtype: torch.dtype = torch.bfloat16, size: int = D) -> list[Tensor]:
    """q, k, v, slopes, numbers of documents, bits, and what is added."""
    q = torch.randn(B, S, H, size).to(dtype).transpose(1, 2)
    k, v = (torch.randn(B, G, S, size).to(dtype) for _ in "kv")
    documents = torch.randint(3, (B, S)).sort(1).values + (1 << 40)
    bits, added = torch.rand(B, 1, 1, S) < 0.7, torch.randn(H, S, S).to(dtype)
    return [q, k, v, torch.rand(H).to(dtype), documents, bits, added]


def places() -> tuple[Tensor, Tensor]:
    return torch.arange(S)[:, None], torch.arange(S)[None]


def seen(change: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]) -> Any:
    """Attention with a change of its scores, by indices, slopes, documents, bits, and a matrix."""

    def function(
        q: Tensor, k: Tensor, v: Tensor, t: Tensor, d: Tensor, m: Tensor, a: Tensor
    ) -> Tensor:
        k, v = (x.repeat_interleave(H // G, 1) for x in (k, v))
        i, j = places()
        scores = change(q @ k.mT * 0.125, i, j, t, d, m, a)
        return torch.softmax(scores, -1) @ v

    return function


LOW: Final = -torch.inf
VARIANTS: Final[dict[str, tuple[Function, str]]] = {
    "plain": (seen(lambda s, i, j, t, d, m, a: s), "for t: 64 of T\n"),
    "causal": (
        seen(lambda s, i, j, t, d, m, a: s.masked_fill(j > i, LOW)),
        "for t: 64 of T to i + 128\n",
    ),
    "window": (
        seen(lambda s, i, j, t, d, m, a: torch.where((j <= i) & (i - j < 50), s, LOW)),
        "for t: 64 of T from i - 49 to i + 128\n",
    ),
    "soft cap": (seen(lambda s, i, j, t, d, m, a: torch.tanh(s / 5.0) * 5.0), "tanh(v"),
    "ALiBi": (
        seen(
            lambda s, i, j, t, d, m, a: torch.where(j <= i, s + t[:, None, None] * (j - i), LOW)
        ),
        "[G, R, 1, 1]",
    ),
    "documents": (
        seen(
            lambda s, i, j, t, d, m, a: torch.where(
                (d[:, None, :, None] == d[:, None, None]) & (j <= i), s, LOW
            )
        ),
        "i64[B, 1, T]",
    ),
    "padding": (
        seen(lambda s, i, j, t, d, m, a: s.masked_fill(~m, LOW)), "i1[B, 1, T]"
    ),
    "a matrix": (seen(lambda s, i, j, t, d, m, a: s + a), "bf16[G, R, S, T]"),
}  # fmt: skip


def called(
    q: Tensor, k: Tensor, v: Tensor, t: Tensor, d: Tensor, m: Tensor, a: Tensor, **how: Any
) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **how)


CALLED: Final[dict[str, Function]] = {
    "causal": lambda *args: called(*args, is_causal=True),
    "scaled": lambda *args: called(*args, scale=0.3),
    "bits": lambda *args: called(*args, attn_mask=args[5]),
    "a matrix": lambda *args: called(*args, attn_mask=args[6]),
    "repeated keys": lambda q, k, v, *rest: F.scaled_dot_product_attention(
        q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    ),
    "keys before heads": lambda q, k, v, *rest: F.scaled_dot_product_attention(
        q, *(x.transpose(1, 2).repeat_interleave(2, 2).transpose(1, 2) for x in (k, v))
    ),
}


def check(function: Function, args: list[Tensor], rule: str, way: str = "export") -> Report:
    """The rule fires; the results of torch and of the emulated text agree with float64."""
    report, by_torch = WAYS[way](function, args, RULES)
    assert fired(report) == [rule], str(report)
    exact = function(*(x.double() if x.is_floating_point() else x for x in args))
    with emulated() as runs:
        _, by_text = WAYS[way](function, args, RULES)
    assert [run.digest for _, run in runs] == [kernel.digest for kernel, _ in runs] != []
    name = {dtype: name for name, dtype in DTYPES.items()}[args[0].dtype]
    for found in (by_torch, by_text):
        assert found.dtype == args[0].dtype and found.stride() == function(*args).stride()
        torch.testing.assert_close(
            found.double(), exact, rtol=TOLERANCES[name], atol=TOLERANCES[name]
        )
    return report


def text_of(report: Report) -> str:
    """The program of the kernel."""
    (text,) = [
        node.args[1] for node in report.rewrites[0].after if "tile_kernel" in str(node.target)
    ]
    return str(text)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_written_out(name: str, dtype: str) -> None:
    function, line = VARIANTS[name]
    way = "export" if dtype == "bf16" else "decomposed"
    report = check(function, inputs(DTYPES[dtype]), "tiled_attention", way)
    assert dtype == "fp16" or line in text_of(report), text_of(report)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("name", CALLED)
def test_calls_of_fused_attention(name: str) -> None:
    check(CALLED[name], inputs(), "called_tiled_attention")


FUSED: Final[dict[str, tuple[Any, tuple[object, ...]]]] = {
    "efficient": (torch.ops.aten._scaled_dot_product_efficient_attention, (None, False, 0.0, True)),
    "cudnn": (torch.ops.aten._scaled_dot_product_cudnn_attention, (None, False, 0.0, True)),
    "flash": (torch.ops.aten._scaled_dot_product_flash_attention, (0.0, True)),
}


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("name", FUSED)
def test_what_torch_makes_of_calls_on_gpus(name: str) -> None:
    operator, rest = FUSED[name]
    q, k, v = (x[:, :G].contiguous() for x in inputs()[:3])
    module = make_fx(lambda *args: operator(*args, *rest)[0], tracing_mode="fake")(q, k, v)
    assert fired(rewrite(module, RULES)) == ["called_tiled_attention"]
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    torch.testing.assert_close(module(q, k, v).double(), exact, rtol=2e-2, atol=2e-2)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("name", FUSED)
def test_causal_masks_from_the_first_key(name: str) -> None:
    """Of other lengths, two kernels may count from the last key."""
    operator, rest = FUSED[name]
    q, k, v = (x[:, :G].contiguous() for x in inputs()[:3])
    module = make_fx(lambda *args: operator(*args, *rest)[0], tracing_mode="fake")(
        q[:, :, :50], k, v
    )
    report = rewrite(module, RULES)
    assert fired(report) == ["called_tiled_attention"] * (name == "efficient")
    assert name == "efficient" or "count from the last key" in str(report)


# --- near misses ---------------------------------------------------------------------------------


def reasons(function: Function, args: list[Tensor]) -> set[str]:
    """Why nothing was rewritten."""
    report = rewrite(whole_operators(function, args), RULES)
    assert not report.rewrites, str(report)
    return {refusal.reason for refusal in report.refusals}


def weights_are_used(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
    weights = torch.softmax(q[:, :G] @ k.mT, -1)
    return weights @ v + weights.sum()


sdpa: Final = F.scaled_dot_product_attention
CAUSAL: Final = VARIANTS["causal"][0]
MISSES: Final[dict[str, tuple[Callable[[], tuple[Function, list[Tensor]]], str | None]]] = {
    "float32": (lambda: (CAUSAL, inputs(torch.float32)), "the operands are torch.float32"),
    "small heads": (lambda: (CAUSAL, inputs(size=8)), "a head has 8 elements"),
    "rows of 40 bytes": (
        lambda: (CAUSAL, inputs(size=20)), "of `q` are 40 bytes apart"
    ),
    "an odd address": (
        lambda: (CAUSAL, [inputs(size=72)[0][..., 4:68], *inputs()[1:]]),
        "`q` begins at an address that 16 does not divide",
    ),
    "other values": (
        lambda: (
            lambda q, k, v, *rest: torch.softmax(q[:, :G] @ k.mT, -1) @ v[..., :32], inputs()
        ),
        "queries, keys and values have other shapes",
    ),
    "one batch of keys": (
        lambda: (
            lambda q, k, v, *rest: torch.softmax(
                q @ k[:1, :1].expand(B, H, S, D).mT, -1
            ) @ v[:1, :1].expand(B, H, S, D),
            inputs(),
        ),
        None,
    ),
    "keys that are expanded": (
        lambda: (
            lambda q, k, v, *rest: sdpa(q[:, :G], k, v),
            [inputs()[0], *(x[:1].expand(B, -1, -1, -1) for x in inputs()[1:3]), *inputs()[3:]],
        ),
        "the places of dimension 0 of `k` are all the same",
    ),
    **{
        name: (lambda function=function: (function, inputs()), None)
        for name, function in {
            "all of three dimensions": lambda q, k, v, *rest: sdpa(q[0, :G], k[0], v[0]),
            "keys of three dimensions": lambda q, k, v, *rest: sdpa(q[:, :G], k[0], v),
            "values of three dimensions": lambda q, k, v, *rest: sdpa(q[:, :G], k, v[0]),
        }.items()
    },
    "a table of distances": (
        lambda: (
            seen(lambda s, i, j, t, d, m, a: s + a[0, 0][(i - j).abs()]), inputs()
        ),
        "the scores read elements at computed indices",
    ),
    "a mask of the scores": (
        lambda: (seen(lambda s, i, j, t, d, m, a: s.masked_fill(s < 0, LOW)), inputs()),
        "`mul` is also used by `lt`",
    ),
    "sigmoids": (
        lambda: (
            lambda q, k, v, *rest: torch.sigmoid(q[:, :G] @ k.mT) @ v, inputs()
        ),
        "no kernel takes `sigmoid` on scores",
    ),
    "a mask in float64": (
        lambda: (
            seen(lambda s, i, j, t, d, m, a: (s + a.double()).to(s.dtype)), inputs()
        ),
        "the scores read a tensor of torch.float64",
    ),
    "another softmax": (
        lambda: (
            lambda q, k, v, *rest: torch.softmax(q[:, :G] @ k.mT, -2) @ v, inputs()
        ),
        None,
    ),
    "weights that are used": (lambda: (weights_are_used, inputs()), "is also used by"),
    "dropout": (
        lambda: (
            lambda q, k, v, *rest: sdpa(q[:, :G], k, v, dropout_p=0.5),
            inputs(),
        ),
        None,
    ),
}  # fmt: skip


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("name", MISSES)
def test_near_misses(name: str) -> None:
    make, reason = MISSES[name]
    found = reasons(*make())
    assert reason is None or any(reason in each for each in found), found


def test_not_on_a_cpu() -> None:
    assert reasons(CAUSAL, inputs()) == {"the kernel is for GPUs"}


@pytest.mark.usefixtures("gpu")
def test_not_where_the_gpu_is_not_filled() -> None:
    (reason,) = reasons(CALLED["causal"], inputs())
    assert reason == "4.38 full tiles leave some of 132 multiprocessors without work"


@pytest.mark.usefixtures("hopper")
def test_not_in_training() -> None:
    args = inputs()[:3]
    args[2].requires_grad_()
    report, _ = hooked(
        F.scaled_dot_product_attention, [args[0][:, :G], *args[1:]], RULES, "pre_grad"
    )
    assert not report.rewrites
    assert {r.reason for r in report.refusals} == {"the kernel has no gradients of its own"}


@pytest.mark.usefixtures("hopper")
def test_sizes_that_are_not_known() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    args = [x[:, :G] for x in inputs()[:3]]
    assert not rewrite(fx.symbolic_trace(function), RULES).rewrites
    report = rewrite(make_fx(function, tracing_mode="symbolic", pre_dispatch=True)(*args), RULES)
    assert not report.rewrites
    assert any("the sizes are not known" in refusal.reason for refusal in report.refusals)
