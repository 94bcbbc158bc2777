"""Stand-ins for operators of vLLM 0.33: the schemas of its wheel, computed by torch on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor
from torch._library.opaque_object import register_opaque_type
from torch._opaque_base import OpaqueBase

TYPE: Final = torch.float8_e4m3fn
TOP: Final = torch.finfo(TYPE).max
SCHEMAS: Final[Mapping[str, tuple[str, ...]]] = {
    "_C": (
        "rms_norm(Tensor! result, Tensor input, Tensor? weight, float epsilon) -> ()",
        "fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()",
        "rms_norm_static_fp8_quant(Tensor! result, Tensor input, Tensor weight, Tensor scale,"
        " float epsilon) -> ()",
        "fused_add_rms_norm_static_fp8_quant(Tensor! result, Tensor input, Tensor! residual,"
        " Tensor weight, Tensor scale, float epsilon) -> ()",
        "rms_norm_dynamic_per_token_quant(Tensor! result, Tensor input, Tensor weight,"
        " Tensor! scale, float epsilon, Tensor? scale_ub, Tensor!? residual) -> ()",
        "rms_norm_per_block_quant(Tensor! result, Tensor input, Tensor weight, Tensor! scale,"
        " float epsilon, Tensor? scale_ub, Tensor!? residual, int group_size,"
        " bool is_scale_transposed) -> ()",
        "silu_and_mul_nvfp4_quant(Tensor! result, Tensor! result_block_scale, Tensor input,"
        " Tensor input_global_scale) -> ()",
        "scaled_fp4_quant(Tensor input, Tensor input_scale, bool is_sf_swizzled_layout) ->"
        " (Tensor, Tensor)",
        "scaled_fp4_quant.out(Tensor input, Tensor input_scale, bool is_sf_swizzled_layout, *,"
        " Tensor(a!) output, Tensor(b!) output_scale) -> ()",
        "silu_and_mul(Tensor! result, Tensor input) -> ()",
        "silu_and_mul_quant(Tensor! result, Tensor input, Tensor scale) -> ()",
        "silu_and_mul_per_block_quant(Tensor! out, Tensor input, Tensor! scales, int group_size,"
        " Tensor? scale_ub=None, bool is_scale_transposed=False) -> ()",
        "static_scaled_fp8_quant(Tensor! result, Tensor input, Tensor scale,"
        " int[]? group_shape=None) -> ()",
        "dynamic_per_token_scaled_fp8_quant(Tensor! result, Tensor input, Tensor! scale,"
        " Tensor? scale_ub) -> ()",
        "per_token_group_fp8_quant(Tensor input, Tensor! output_q, Tensor! output_s,"
        " int group_size, float eps, float fp8_min, float fp8_max, bool scale_ue8m0,"
        " bool dummy_is_scale_transposed, bool dummy_is_tma_aligned ) -> ()",
        "rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size,"
        " Tensor cos_sin_cache, bool is_neox, int rope_dim_offset=0, bool inverse=False) -> ()",
        "fused_qk_norm_rope(Tensor! qkv, int num_heads_q, int num_heads_k, int num_heads_v,"
        " int head_dim, float eps, Tensor q_weight, Tensor k_weight, Tensor cos_sin_cache,"
        " bool is_neox, Tensor position_ids, int forced_token_heads_per_warp=-1) -> ()",
    ),
    "vllm_ir": (
        "rms_norm(Tensor x, Tensor? weight, float epsilon, SymInt? variance_size=None) -> Tensor",
        "fused_add_rms_norm(Tensor x, Tensor x_residual, Tensor? weight, float epsilon,"
        " SymInt? variance_size=None) -> (Tensor, Tensor)",
    ),
}


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """RMSNorm in float32, not rounded."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return wide if weight is None else wide * weight.float()


def _quantize(result: Tensor, x: Tensor, scale: Tensor) -> None:
    result.copy_((x.float() / scale).clamp(-TOP, TOP).to(TYPE).view(result.shape))


def _row_scales(x: Tensor) -> Tensor:
    return (x.float().abs().amax(-1, keepdim=True) / TOP).clamp(min=1 / (TOP * 512))


def _in_groups(result: Tensor, x: Tensor, scales: Tensor, columns: int, eps: float) -> None:
    groups = x.float().unflatten(-1, (-1, columns))
    each = groups.abs().amax(-1).clamp(min=eps) / TOP
    scales.copy_(each)
    _quantize(result, groups, each[..., None])


def _pack(output: Tensor, scales: Tensor, x: Tensor, scale: Tensor) -> None:
    """NVFP4: values of E2M1, two in a byte, and a scale for each 16 of a row.

    The bytes of the scales are in the order of the rows, also where vLLM's kernels swizzle them.
    """
    groups = x.float().reshape(-1, x.shape[-1] // 16, 16) * scale.float()
    steps = (groups.abs().amax(-1) / 6).to(TYPE)
    grid = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    ratio = groups / steps.float().clamp(min=2**-9)[..., None]
    place = (ratio.abs()[..., None] - grid).abs().argmin(-1) + 8 * (ratio < 0)
    pairs = place.to(torch.uint8).reshape(len(groups), -1, 2)
    output.copy_((pairs[..., 0] + 16 * pairs[..., 1]).view(output.shape))
    whole = scales.view(torch.uint8)
    whole.zero_()
    whole[: steps.shape[0], : steps.shape[1]] = steps.view(torch.uint8)


def scaled_fp4_quant_out(input, input_scale, is_sf_swizzled_layout, *, output, output_scale):
    _pack(output, output_scale, input, input_scale)


def scaled_fp4_quant(input, input_scale, is_sf_swizzled_layout):
    rows, columns = input.shape
    output = torch.empty((rows, columns // 2), dtype=torch.uint8)
    scales = torch.empty((-(-rows // 128) * 128, -(-columns // 64)), dtype=torch.int32)
    _pack(output, scales, input, input_scale)
    return output, scales


def silu_and_mul_nvfp4_quant(result, result_block_scale, input, input_global_scale):
    gate, up = input.chunk(2, -1)
    y = torch.nn.functional.silu(gate) * up
    _pack(result, result_block_scale, y, input_global_scale)


def flashinfer_fused_add_rms_norm_nvfp4_quant(
    result: Tensor,
    result_block_scale: Tensor,
    residual: Tensor,
    input: Tensor,
    weight: Tensor,
    input_global_scale: Tensor,
    block_scale_unswizzled: Tensor,
    is_sf_swizzled_layout: bool,
    epsilon: float,
) -> None:
    residual.add_(input)
    y = _norm(residual, weight, epsilon).to(input.dtype)
    _pack(result, result_block_scale, y, input_global_scale)


def rms_norm(result, input, weight, epsilon):
    result.copy_(_norm(input, weight, epsilon))


def fused_add_rms_norm(input, residual, weight, epsilon):
    residual.add_(input)
    input.copy_(_norm(residual, weight, epsilon))


def rms_norm_static_fp8_quant(result, input, weight, scale, epsilon):
    _quantize(result, _norm(input, weight, epsilon).to(input.dtype), scale)


def fused_add_rms_norm_static_fp8_quant(result, input, residual, weight, scale, epsilon):
    residual.add_(input)
    _quantize(result, _norm(residual, weight, epsilon).to(input.dtype), scale)


def rms_norm_dynamic_per_token_quant(result, input, weight, scale, epsilon, scale_ub, residual):
    if residual is not None:
        input = residual.add_(input)
    y = _norm(input, weight, epsilon).to(input.dtype)
    scale.copy_(_row_scales(y).view(scale.shape))
    _quantize(result, y, _row_scales(y))


def rms_norm_per_block_quant(
    result, input, weight, scale, epsilon, scale_ub, residual, group_size, is_scale_transposed
):
    if residual is not None:
        input = residual.add_(input)
    y = _norm(input, weight, epsilon).to(input.dtype)
    _in_groups(result, y, scale, group_size, 1e-10)


def silu_and_mul(result, input):
    gate, up = input.chunk(2, -1)
    result.copy_(torch.nn.functional.silu(gate) * up)


def silu_and_mul_quant(result, input, scale):
    gate, up = input.chunk(2, -1)
    _quantize(result, torch.nn.functional.silu(gate) * up, scale)


def silu_and_mul_per_block_quant(
    out, input, scales, group_size, scale_ub=None, is_scale_transposed=False
):
    gate, up = input.chunk(2, -1)
    _in_groups(out, torch.nn.functional.silu(gate) * up, scales, group_size, 1e-10)


def static_scaled_fp8_quant(result, input, scale, group_shape=None):
    _quantize(result, input, scale)


def dynamic_per_token_scaled_fp8_quant(result, input, scale, scale_ub):
    scale.copy_(_row_scales(input).view(scale.shape))
    _quantize(result, input, _row_scales(input))


def per_token_group_fp8_quant(
    input, output_q, output_s, group_size, eps, fp8_min, fp8_max, scale_ue8m0, *_
):
    _in_groups(output_q, input, output_s, group_size, eps)
    if scale_ue8m0:
        groups = input.float().unflatten(-1, (-1, group_size))
        output_s.copy_(torch.exp2(torch.ceil(torch.log2(output_s))))
        _quantize(output_q, groups, output_s[..., None])


def _turned(x: Tensor, cos: Tensor, sin: Tensor, is_neox: bool) -> Tensor:
    a, b = x.float().chunk(2, -1) if is_neox else (x.float()[..., ::2], x.float()[..., 1::2])
    pair = a * cos - b * sin, b * cos + a * sin
    return torch.cat(pair, -1) if is_neox else torch.stack(pair, -1).flatten(-2)


def rotary_embedding(
    positions, query, key, head_size, cos_sin_cache, is_neox, rope_dim_offset=0, inverse=False
):
    cos, sin = cos_sin_cache[positions.flatten()].float()[:, None].chunk(2, -1)
    for each in (query, key):
        heads = each.view(len(cos), -1, head_size)
        heads.copy_(_turned(heads, cos, sin, is_neox))


def fused_qk_norm_rope(
    qkv, num_heads_q, num_heads_k, num_heads_v, head_dim, eps, q_weight, k_weight,
    cos_sin_cache, is_neox, position_ids, forced_token_heads_per_warp=-1,
):  # fmt: skip
    heads = qkv.view(len(qkv), -1, head_dim)
    cos, sin = cos_sin_cache[position_ids].float()[:, None].chunk(2, -1)
    ends = (0, num_heads_q, num_heads_q + num_heads_k)
    for i, weight in enumerate((q_weight, k_weight)):
        part = heads[:, ends[i] : ends[i + 1]]
        part.copy_(_turned(_norm(part, weight, eps).to(qkv.dtype), cos, sin, is_neox))


class LayerName(OpaqueBase):
    """The name of a layer as vLLM passes it: an object that `torch.compile` makes an input."""

    def __init__(self, value: str) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LayerName) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __fx_repr__(self) -> tuple[str, dict[str, type]]:
        return f"LayerName({self.value!r})", {"LayerName": LayerName}


register_opaque_type(LayerName, typ="value", hoist=True)


def unified_attention_with_output(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    layer_name: LayerName,
    output_scale: Tensor | None = None,
    output_block_scale: Tensor | None = None,
    kv_cache_dummy_dep: Tensor | None = None,
) -> None:
    attention = torch.nn.functional.scaled_dot_product_attention
    found = attention(*(x.transpose(0, 1) for x in (query, key, value))).transpose(0, 1)
    if output_scale is None:
        output.copy_(found)
    elif output_block_scale is not None:
        _pack(output, output_block_scale, found.to(query.dtype).flatten(1), output_scale)
    else:
        _quantize(output, found, output_scale)


def ir_rms_norm(x, weight, epsilon, variance_size=None):
    return _norm(x, weight, epsilon).to(x.dtype)


def ir_fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size=None):
    total = (x.float() + x_residual.float()).to(x.dtype)
    return _norm(total, weight, epsilon).to(x.dtype), total


WRITES: Final[Mapping[Callable[..., None], tuple[str, ...]]] = {
    unified_attention_with_output: ("output", "output_block_scale"),
    flashinfer_fused_add_rms_norm_nvfp4_quant: ("result", "result_block_scale", "residual"),
}
"""Operators that vLLM writes in Python: the arguments that each one writes."""


def register() -> None:
    """Register the stand-ins, once in a process. No library of vLLM can be loaded afterwards."""
    for namespace, schemas in SCHEMAS.items():
        for schema in schemas:
            name = schema.partition("(")[0]
            is_ir = namespace == "vllm_ir"
            compute: Callable[..., object] = globals()[
                f"ir_{name}" if is_ir else name.replace(".", "_")
            ]
            gives_values = "-> ()" not in schema
            shapes = compute if gives_values else lambda *_, **__: None
            define(f"{namespace}::{name}", schema[len(name) :], compute, shapes)
    for function, written in WRITES.items():
        define_function(function, written, lambda *_, **__: None)


def define_function(
    compute: Callable[..., object], written: Sequence[str], shapes: Callable[..., object]
) -> None:
    """Define an operator of the namespace `vllm` with the parameters of a function, as vLLM does.

    A `LayerName` may be a string, too.
    """
    schema = torch.library.infer_schema(compute, mutates_args=written)
    define(f"vllm::{compute.__name__}", schema, compute, shapes)


def define(
    name: str, schema: str, compute: Callable[..., object], shapes: Callable[..., object]
) -> None:
    """Define an operator unless it is defined: what computes it on any device, and its shapes."""
    namespace, _, bare = name.partition("::")
    packet, _, overload = bare.partition(".")
    found = getattr(getattr(torch.ops, namespace), packet, None)
    if found is not None and (overload or "default") in found.overloads():
        return
    torch.library.define(name, schema)
    torch.library.impl(name, "CompositeExplicitAutograd", compute)
    torch.library.register_fake(name, shapes)
