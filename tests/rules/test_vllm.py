"""The pack for vLLM: each fusion in several spellings, its near misses, and its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from pypm.fx import POST_GRAD, Report, rewrite
from pypm.rules import vllm
from pypm.torch_internals import ConstantSource, FakeTensorMode
from tests import vllm_operators
from tests.vllm_operators import TOP, TYPE

vllm_operators.register()
C, IR, FUNCTIONAL = torch.ops._C, torch.ops.vllm_ir, torch.ops.higher_order
EPS = 1e-6
TOKENS = 6
Spelling = Callable[..., Any]


def called(kernel: Any, **operands: object) -> Any:
    """A kernel that writes its operands, as a functional call of torch's first form."""
    return FUNCTIONAL.auto_functionalized(kernel.default, **operands)


def called_with_bases(kernel: Any, written: dict[str, Tensor], **operands: object) -> Any:
    """The same, in torch's second form."""
    places = {f"_{name}_base_index": i for i, name in enumerate(written)}
    bases = [*written.values()]
    form = FUNCTIONAL.auto_functionalized_v2
    return form(kernel.default, **operands, **places, _all_bases=bases)


def room(x: Tensor, dtype: torch.dtype = TYPE) -> Tensor:
    return torch.empty(x.shape, dtype=dtype, device=x.device)


# --- parts, spelled in several ways --------------------------------------------------------------


def norm_ir(x, w):
    return IR.rms_norm(x, w, EPS)


def norm_called(x, w):
    return called_with_bases(
        C.rms_norm, {"result": room(x, x.dtype)}, input=x, weight=w, epsilon=EPS
    )[1]


def norm_written(x, w):
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + EPS)
    return (y.to(w.dtype) * w).to(x.dtype)


def sum_ir(x, r, w):
    return IR.fused_add_rms_norm(x, r, w, EPS)


def sum_called(x, r, w):
    return called(C.fused_add_rms_norm, input=x, residual=r, weight=w, epsilon=EPS)[1:]


def sum_written(x, r, w):
    total = x + r
    return norm_written(total, w), total


def sum_of_norm(x, r, w):
    total = r + x
    return norm_ir(total, w), total


def static_called(x, scale, group=(-1, -1)):
    kernel = C.static_scaled_fp8_quant
    return called(kernel, result=room(x), input=x, scale=scale, group_shape=[*group])[1]


def static_with_bases(x, scale):
    kernel = C.static_scaled_fp8_quant
    return called_with_bases(kernel, {"result": room(x)}, input=x, scale=scale)[1]


def static_written(x, scale):
    return (x.float() * scale.reciprocal()).clamp(-TOP, TOP).to(TYPE)


def rows_called(x):
    scale = torch.empty((x.shape[0], 1), dtype=torch.float32)
    kernel = C.dynamic_per_token_scaled_fp8_quant
    return called(kernel, result=room(x), input=x, scale=scale, scale_ub=None)[1:]


def rows_written(x, least=1 / (TOP * 512)):
    scale = (x.abs().amax(-1).unsqueeze(-1).float() / TOP).clamp(min=least)
    return static_written(x, scale), scale


def groups(x, powers=False, columns=16, turned=False):
    shape = (x.shape[0], x.shape[1] // columns)
    scale = torch.empty(shape[::-1], dtype=torch.float32).mT if turned else torch.empty(shape)
    return called(
        C.per_token_group_fp8_quant, input=x, output_q=room(x), output_s=scale,
        group_size=columns, eps=1e-10, fp8_min=-TOP, fp8_max=TOP, scale_ue8m0=powers,
        dummy_is_scale_transposed=turned, dummy_is_tma_aligned=False,
    )[1:]  # fmt: skip


def silu_called(x):
    half = torch.empty((x.shape[0], x.shape[1] // 2), dtype=x.dtype)
    return called(C.silu_and_mul, result=half, input=x)[1]


def silu_sliced(x):
    d = x.shape[-1] // 2
    return torch.nn.functional.silu(x[..., :d]) * x[..., d:]


def silu_chunked(x):
    gate, up = x.chunk(2, -1)
    return up * (gate * gate.sigmoid())


def silu_split(x):
    gate, up = x.split(x.shape[-1] // 2, -1)
    gate = gate.float()
    return (gate / (1 + torch.exp(-gate))).to(x.dtype) * up


NORMS = (norm_ir, norm_called, norm_written)
SUMS = (sum_ir, sum_called, sum_written, sum_of_norm)
STATIC = (static_called, static_with_bases, static_written)
SILUS = (silu_called, silu_sliced, silu_chunked, silu_split)


def inputs(*kinds: str) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    made = {
        "x": torch.randn(TOKENS, 64, dtype=torch.bfloat16),
        "r": torch.randn(TOKENS, 64, dtype=torch.bfloat16),
        "w": torch.rand(64, dtype=torch.bfloat16) + 0.5,
        "scale": torch.tensor([0.02]),
        "qkv": torch.randn(TOKENS, 8 * 64, dtype=torch.bfloat16),
        "positions": torch.arange(TOKENS),
        "head": torch.rand(64, dtype=torch.bfloat16) + 0.5,
        "cache": torch.randn(8, 64).cos().bfloat16(),
        "heads": torch.randn(TOKENS, 4, 16, dtype=torch.bfloat16),
    }
    return tuple(made[kind].clone() for kind in kinds)


def check(spelling: Spelling, kinds: str, kernel: str, rules: Any = vllm.RULES) -> fx.GraphModule:
    """A graph of the spelling becomes one call of the kernel, with values one step away at most."""
    gm, report = rewritten(spelling, kinds, rules)
    assert [str(n.args[0]) for n in functional(gm)] == [kernel + ".default"], report
    given = inputs(*kinds.split())
    expected = spelling(*(x.clone() for x in given))
    results = gm(*given)
    if isinstance(expected, Tensor):
        expected, results = (expected,), (results,)
    for result, value in zip(results, expected, strict=True):
        step = 2**-3 if value.dtype == TYPE else 2**-7
        assert result.dtype == value.dtype
        torch.testing.assert_close(result.float(), value.float(), rtol=step, atol=2**-5)
    return gm


def rewritten(
    spelling: Spelling, kinds: str, rules: Any = vllm.RULES
) -> tuple[fx.GraphModule, Report]:
    gm = traced(spelling, inputs(*kinds.split()))
    gm.graph.eliminate_dead_code()
    report = rewrite(gm, rules, dialect=POST_GRAD)
    gm.graph.eliminate_dead_code()
    return gm, report


def traced(function: Spelling, given: tuple[Tensor, ...]) -> fx.GraphModule:
    """The graph of a function for any number of tokens, as vLLM compiles it."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fakes = []
    for i, x in enumerate(given):
        dynamic = [DimDynamic.STATIC] * x.ndim
        if x.shape[0] == TOKENS:
            dynamic[0] = DimDynamic.DUCK
        symbols = StatelessSymbolicContext(dynamic_sizes=dynamic)
        source = ConstantSource(f"x{i}")
        fakes.append(mode.from_tensor(x, source=source, symbolic_context=symbols))
    with mode:
        return make_fx(function)(*fakes)


def functional(gm: fx.GraphModule) -> list[fx.Node]:
    return [n for n in gm.graph.nodes if "auto_functionalized" in str(n.target)]


# --- norms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantize", STATIC)
@pytest.mark.parametrize("norm", NORMS)
def test_norm_with_a_given_scale(norm: Spelling, quantize: Spelling) -> None:
    def spelled(x, w, scale):
        return quantize(norm(x, w), scale)

    check(spelled, "x w scale", "_C.rms_norm_static_fp8_quant")


@pytest.mark.parametrize("quantize", STATIC[1:])
@pytest.mark.parametrize("both", SUMS)
def test_norm_of_a_sum_with_a_given_scale(both: Spelling, quantize: Spelling) -> None:
    def spelled(x, r, w, scale):
        n, total = both(x, r, w)
        return quantize(n, scale), total

    check(spelled, "x r w scale", "_C.fused_add_rms_norm_static_fp8_quant")


@pytest.mark.parametrize("quantize", [rows_called, rows_written])
@pytest.mark.parametrize("norm", NORMS)
def test_norm_with_a_scale_for_each_row(norm: Spelling, quantize: Spelling) -> None:
    check(lambda x, w: tuple(quantize(norm(x, w))), "x w", "_C.rms_norm_dynamic_per_token_quant")


@pytest.mark.parametrize("quantize", [rows_called, rows_written])
@pytest.mark.parametrize("both", SUMS[:3])
def test_norm_of_a_sum_with_a_scale_for_each_row(both: Spelling, quantize: Spelling) -> None:
    def spelled(x, r, w):
        n, total = both(x, r, w)
        return *quantize(n), total

    check(spelled, "x r w", "_C.rms_norm_dynamic_per_token_quant")


@pytest.mark.parametrize("norm", NORMS)
def test_norm_with_a_scale_for_each_group(norm: Spelling) -> None:
    check(lambda x, w: tuple(groups(norm(x, w))), "x w", "_C.rms_norm_per_block_quant")


@pytest.mark.parametrize("both", SUMS[:3])
def test_norm_of_a_sum_with_a_scale_for_each_group(both: Spelling) -> None:
    def spelled(x, r, w):
        n, total = both(x, r, w)
        return *groups(n, turned=True), total

    check(spelled, "x r w", "_C.rms_norm_per_block_quant")


def test_rows_may_be_grouped_otherwise_between() -> None:
    def spelled(x, w, scale):
        return static_called(norm_ir(x.view(-1, 1, 64), w).view(x.shape), scale)

    check(spelled, "x w scale", "_C.rms_norm_static_fp8_quant")


def test_a_residual_that_is_read_elsewhere_is_copied() -> None:
    def spelled(x, r, w, scale):
        n, total = sum_ir(x, r, w)
        return static_called(n, scale), total, r * 2

    gm = check(spelled, "x r w scale", "_C.fused_add_rms_norm_static_fp8_quant")
    (call,) = functional(gm)
    assert call.kwargs["residual"].target is torch.ops.aten.clone.default

    def alone(x, r, w, scale):
        n, total = sum_ir(x, r, w)
        return static_called(n, scale), total

    (call,) = functional(check(alone, "x r w scale", "_C.fused_add_rms_norm_static_fp8_quant"))
    assert call.kwargs["residual"].op == "placeholder"


# --- activations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("quantize", STATIC[1:])
@pytest.mark.parametrize("silu", SILUS)
def test_silu_with_a_given_scale(silu: Spelling, quantize: Spelling) -> None:
    def spelled(x, scale):
        return quantize(silu(x), scale)

    check(spelled, "x scale", "_C.silu_and_mul_quant")


@pytest.mark.parametrize("silu", SILUS)
def test_silu_with_a_scale_for_each_group(silu: Spelling) -> None:
    check(lambda x: tuple(groups(silu(x))), "x", "_C.silu_and_mul_per_block_quant")


# --- heads ---------------------------------------------------------------------------------------


def by_split(x, sizes):
    return x.split(sizes, -1)


def by_slices(x, sizes):
    return x[..., : sizes[0]], x[..., sizes[0] : sizes[0] + sizes[1]], None


def turned(q, k, positions, cache, is_neox=True, width=64):
    kernel = C.rotary_embedding
    made = called(
        kernel, positions=positions, query=q, key=k, head_size=width, cos_sin_cache=cache,
        is_neox=is_neox,
    )  # fmt: skip
    return made[1], made[2]


def turned_with_bases(q, k, positions, cache, is_neox=True):
    made = called_with_bases(
        C.rotary_embedding, {"query": q, "key": k}, positions=positions, head_size=64,
        cos_sin_cache=cache, is_neox=is_neox,
    )  # fmt: skip
    return made[1], made[2]


@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("rotary", [turned, turned_with_bases])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("part", [by_split, by_slices])
def test_heads(part: Spelling, norm: Spelling, rotary: Spelling, is_neox: bool) -> None:
    def spelled(qkv, positions, w, cache):
        q, k, v = part(qkv, [4 * 64, 2 * 64, 2 * 64])
        q, k = (norm(each.reshape(qkv.shape[0], -1, 64), w).reshape(each.shape) for each in (q, k))
        q, k = rotary(q, k, positions, cache, is_neox)
        return (q, k) if v is None else (q, k, v + 0)

    check(spelled, "qkv positions head cache", "_C.fused_qk_norm_rope")


# --- attention -----------------------------------------------------------------------------------


def attention(q, layer="model.layers.0"):
    kernel = torch.ops.vllm.unified_attention_with_output
    made = called(
        kernel, query=q, key=q, value=q, output=room(q, q.dtype), layer_name=layer,
        output_scale=None, output_block_scale=None, kv_cache_dummy_dep=None,
    )  # fmt: skip
    return made[1].reshape(q.shape[0], -1)


@pytest.mark.parametrize("quantize", STATIC)
def test_attention(quantize: Spelling) -> None:
    def spelled(q, scale):
        return quantize(attention(q), scale)

    gm = check(spelled, "heads scale", "vllm.unified_attention_with_output", vllm.ATTENTION)
    (call,) = functional(gm)
    assert call.kwargs["layer_name"] == "model.layers.0"
    assert len(rewritten(spelled, "heads scale")[1]) == 0


# --- near misses ---------------------------------------------------------------------------------


def normed_heads(norm_k=norm_ir, order=(256, 128, 128), width=64, read=False, eps=EPS):
    def spelled(qkv, positions, w, cache):
        q, k, v = qkv.split([*order], -1)
        heads = q.reshape(qkv.shape[0], -1, 64)
        q = IR.rms_norm(heads, w, eps).reshape(q.shape)
        k = norm_k(k.reshape(qkv.shape[0], -1, 64), w).reshape(k.shape)
        made = turned(q, k, positions, cache, width=width)
        return *made, (heads * 2 if read else v + 0)

    return spelled


def read_twice(x, scale):
    return static_called(x, scale), x * 2


def partial_norm(x, w):
    return IR.rms_norm(x, w, EPS, 32)


MISSES: dict[str, tuple[Spelling, str]] = {
    "a variance of a part of each row": (
        lambda x, w, s: static_called(partial_norm(x, w), s), "x w scale"),
    "a norm that is read elsewhere": (
        lambda x, w, s: read_twice(norm_ir(x, w), s), "x w scale"),
    "a weight of another type": (
        lambda x, w, s: static_called(norm_ir(x, w.float()), s), "x w scale"),
    "no weight": (lambda x, s: static_called(IR.rms_norm(x, None, EPS), s), "x scale"),
    "a scale for each column": (
        lambda x, w, r: static_called(norm_ir(x, w), r[0].float(), (-1, 1)), "x w r"),
    "values that do not saturate": (
        lambda x, w, s: (norm_written(x, w).float() / s).clamp(-TOP, 240).to(TYPE), "x w scale"),
    "another type of eight bits": (
        lambda x, w, s: (norm_ir(x, w).float() / s).clamp(-TOP, TOP).to(torch.float8_e5m2),
        "x w scale"),
    "scales that are powers of two": (
        lambda x, w: tuple(groups(norm_ir(x, w), powers=True)), "x w"),
    "powers of two behind an activation": (
        lambda x: tuple(groups(silu_called(x), powers=True)), "x"),
    "a larger least scale": (
        lambda x, w: rows_written(norm_ir(x, w), least=1e-3), "x w"),
    "the other half": (
        lambda x, s: static_called(
            torch.nn.functional.silu(x[:, 32:]) * x[:, :32], s), "x scale"),
    "overlapping parts": (
        lambda x, s: static_called(
            torch.nn.functional.silu(x[:, :32]) * x[:, 16:48], s), "x scale"),
    "an activation that is read elsewhere": (
        lambda x, s: read_twice(silu_called(x), s), "x scale"),
    "fewer values than keys": (
        normed_heads(order=(256, 192, 64)), "qkv positions head cache"),
    "another eps for the query": (normed_heads(eps=1e-5), "qkv positions head cache"),
    "a head that is read elsewhere": (normed_heads(read=True), "qkv positions head cache"),
    "a key without a norm": (
        normed_heads(norm_k=lambda x, w: x * w), "qkv positions head cache"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_near_misses(name: str) -> None:
    spelling, kinds = MISSES[name]
    _, report = rewritten(spelling, kinds)
    assert len(report) == 0, str(report)


def test_a_kernel_that_vllm_lacks_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops._C, "silu_and_mul_quant", None)
    _, report = rewritten(lambda x, s: static_called(silu_called(x), s), "x scale")
    (refusal,) = report.refusals
    assert refusal.reason == "this vLLM has no kernel `silu_and_mul_quant`"


def test_schemas_of_patterns_are_those_of_the_operators() -> None:
    from pypm.fx.operators.schemas import packet
    from pypm.rules.vllm import operators

    for namespace in (operators.C, operators.IR, operators.VLLM):
        for name in namespace._stated:
            stated = getattr(namespace, name)
            assert stated.signatures == packet(stated.name).signatures, name
