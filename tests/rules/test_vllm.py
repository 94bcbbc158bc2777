"""The pack for vLLM: each fusion in several spellings, its near misses, and its values."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from pypm.fx import POST_GRAD, rewrite
from pypm.rules import vllm
from pypm.torch_internals import make_boxed_func
from tests import vllm_groups, vllm_operators
from tests.rules.norms import over_length, unit
from tests.rules.vllm_spellings import (
    EPS,
    IR,
    NORMS,
    SILUS,
    STATIC,
    SUMS,
    C,
    Spelling,
    called,
    called_with_bases,
    check,
    functional,
    groups,
    inputs,
    norm_ir,
    norm_written,
    rewritten,
    room,
    rows_called,
    rows_written,
    silu_called,
    static_called,
    static_written,
    sum_ir,
)
from tests.vllm_operators import TOP, TYPE

CLAMP = torch.ops.aten.clamp.default

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


class Attending(torch.nn.Module):
    """Attention of two layers, each by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.names = [vllm_operators.LayerName(name) for name in ("first", "second")]

    def forward(self, q, scale):
        for name in self.names:
            out, kernel = torch.empty_like(q), torch.ops.vllm.unified_attention_with_output
            kernel(q, q, q, out, name)
            y = static_written(out.reshape(q.shape[0], -1), scale)
            q = y.to(q.dtype).view(q.shape)
        return y


def test_attention_of_layers_that_are_inputs() -> None:
    """`torch.compile` makes inputs of objects such as vLLM's `LayerName`."""
    names = []

    def rewriting(gm, _):
        names.append([n.kwargs["layer_name"] for n in functional(gm)])
        report = rewrite(gm, vllm.ATTENTION, dialect=POST_GRAD)
        assert len(report) == 2, report
        gm.graph.eliminate_dead_code()
        assert len(gm.graph.find_nodes(op="call_function", target=CLAMP)) == 0
        names.append([n.kwargs["layer_name"] for n in functional(gm)])
        return make_boxed_func(gm.forward)

    given, model = inputs("heads", "scale"), Attending()
    with torch.no_grad():
        found = torch.compile(model, backend=aot_autograd(fw_compiler=rewriting))(*given)
    torch.testing.assert_close(found.float(), model(*given).float(), rtol=2**-3, atol=2**-5)
    assert names[0] == names[1]
    assert [name.op for name in dict.fromkeys(names[1])] == ["placeholder"] * 2


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
    "rows of a length that is at least a number": (
        lambda x, w, s: static_called(unit(x, w), s), "x w scale"),
    "rows over a length that is at least a number": (
        lambda x, w: rows_written(over_length(x, w)), "x w"),
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

    vllm_groups.register()
    for namespace in (operators.C, operators.IR, operators.VLLM):
        for name in namespace._stated:
            stated = getattr(namespace, name)
            assert stated.signatures == packet(stated.name).signatures, name
