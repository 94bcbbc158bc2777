"""Operators of vLLM as data: their schemas, and calls of fused ones that write memory of their own.

vLLM registers them, of some only on machines that have the kernel. Patterns name them all the same.
"""

import operator

import torch

from pypm import decline
from pypm.fx import Namespace, Reading, declare, metadata, reference_in_proof

C = Namespace(
    "_C",
    schemas=(
        "rms_norm(Tensor! result, Tensor input, Tensor? weight, float epsilon) -> ()",
        "fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()",
        "silu_and_mul(Tensor! result, Tensor input) -> ()",
        "static_scaled_fp8_quant(Tensor! result, Tensor input, Tensor scale,"
        " int[]? group_shape=None) -> ()",
        "dynamic_per_token_scaled_fp8_quant(Tensor! result, Tensor input, Tensor! scale,"
        " Tensor? scale_ub) -> ()",
        "per_token_group_fp8_quant(Tensor input, Tensor! output_q, Tensor! output_s,"
        " int group_size, float eps, float fp8_min, float fp8_max, bool scale_ue8m0,"
        " bool dummy_is_scale_transposed, bool dummy_is_tma_aligned) -> ()",
        "rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size,"
        " Tensor cos_sin_cache, bool is_neox, int rope_dim_offset=0, bool inverse=False) -> ()",
    ),
)
"""Kernels that are not fused."""
IR = Namespace(
    "vllm_ir",
    schemas=(
        "rms_norm(Tensor x, Tensor? weight, float epsilon, SymInt? variance_size=None) -> Tensor",
        "fused_add_rms_norm(Tensor x, Tensor x_residual, Tensor? weight, float epsilon,"
        " SymInt? variance_size=None) -> (Tensor, Tensor)",
    ),
)
"""Operators that vLLM lowers last."""
VLLM = Namespace(
    "vllm",
    schemas=(
        "all_reduce(Tensor tensor, str group_name) -> Tensor",
        "all_gather(Tensor tensor, SymInt dim, SymInt world_size, str group_name) -> Tensor",
        "sequence_parallel_chunk_impl(Tensor x) -> Tensor",
        "unified_attention_with_output(Tensor query, Tensor key, Tensor value, Tensor! output,"
        " str layer_name, Tensor? output_scale=None, Tensor!? output_block_scale=None,"
        " Tensor? kv_cache_dummy_dep=None) -> ()",
    ),
)
"""Operators in Python: collectives, and attention over the cache of a layer."""

FILLS = {
    "rms_norm_static_fp8_quant": ("result",),
    "fused_add_rms_norm_static_fp8_quant": ("result",),
    "rms_norm_dynamic_per_token_quant": ("result", "scale"),
    "rms_norm_per_block_quant": ("result", "scale"),
    "silu_and_mul_quant": ("result",),
    "silu_and_mul_per_block_quant": ("out", "scales"),
    "silu_and_mul_nvfp4_quant": ("result",),
    "flashinfer_fused_add_rms_norm_nvfp4_quant": ("result",),
    "fused_qk_norm_rope": (),
    "unified_attention_with_output": ("output",),
    "flashinfer_trtllm_fused_allreduce_norm": ("norm_out",),
}
"""The fused kernels: the arguments that each one writes whole and reads nothing of."""


def fused(name, *operands):
    """Return what a call of a fused kernel writes, a tensor for each argument, or decline.

    Arguments:
        name: a key of `FILLS`.
        operands: all arguments of the kernel, in order.

    The call is functional and of torch's first form, the one that vLLM turns into a call in place.
    """
    reference = reference_in_proof(f"_C.{name}") or reference_in_proof(f"vllm.{name}")
    if reference is not None:
        return [*reference(*operands)[1:]]
    packet = getattr(torch.ops._C, name, getattr(torch.ops.vllm, name, None))
    if packet is None:
        return decline(f"this vLLM has no kernel `{name}`")
    kernel = packet.default
    if FILLS[name]:
        declare(kernel, fills=FILLS[name])
    names = [argument.name for argument in kernel._schema.arguments]
    given = dict(zip(names, operands, strict=True))
    _, *made = torch.ops.higher_order.auto_functionalized(kernel, **given)
    return made


def last_reader(name):
    """Return a function for `rule(reads=...)`: whether nothing but the match reads an operand.

    vLLM turns functional calls of its kernels into calls in place without such a test of its own.
    """

    def read(match):
        operand, inside = match.bindings[name], {*match.region.nodes}
        views = (n for n in inside.difference(match.roots) if shows_other_memory(n))
        parts = [n for n in views if isinstance(metadata(n), torch.Tensor)]
        is_last = all(readers(n) <= inside for n in (operand, *parts))
        return Reading(is_last and not shows_other_memory(operand))

    return read


def readers(node):
    """Return the users of a node, but those that read a size of it."""
    sizes = (int, torch.SymInt)
    return {user for user in node.users if not isinstance(metadata(user), sizes)}


def shows_other_memory(node):
    """Return whether a node is a view by its schema, a reshape, or an item of such a call."""
    if node.target is operator.getitem:
        node = node.args[0]
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return False
    aliases = (returned.alias_info for returned in schema.returns)
    return schema.name == "aten::reshape" or any(alias is not None for alias in aliases)


def given_up(operand, match):
    """Return an operand that a kernel may overwrite: itself, or a copy if it is read elsewhere."""
    return operand if match.reading.value else operand.clone()
