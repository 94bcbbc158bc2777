"""Allow-list of the operators that a rule in text may name; an unknown operator is refused.

A rule in text must only compute, whoever wrote it. Operators that torch tags as elementwise are
allowed. All others are listed here, each in one of four tables.
"""

from __future__ import annotations

from functools import cache
from typing import Final, Literal, TypeAlias

from pypm.core.operators import CONS, GETITEM, LITERAL, NIL, Operator
from pypm.fx.operators.corrections import named
from pypm.fx.operators.schemas import canonical_packet, overloads

__all__ = ["CALLED", "DRAWING", "DRAWING_IF_ASKED", "MATCHED", "Use", "objection"]

Use: TypeAlias = Literal["match", "call"]
"""The use of an operator: a pattern matches it, a replacement calls it."""


CALLED: Final = named(
    "aten",
    # shapes
    "alias broadcast_tensors broadcast_to cat channel_shuffle chunk column_stack conj"
    " constant_pad_nd contiguous copy detach diag diag_embed diagflat diagonal diagonal_scatter"
    " dstack expand expand_as flatten flip fliplr flipud hstack imag lift_fresh mH mT matrix_H"
    " movedim narrow numpy_T pad permute pixel_shuffle pixel_unshuffle real reflection_pad1d"
    " reflection_pad2d reflection_pad3d repeat repeat_interleave replication_pad1d"
    " replication_pad2d replication_pad3d reshape reshape_as resolve_conj resolve_neg roll rot90"
    " select select_scatter slice slice_scatter split split_with_sizes squeeze stack t"
    " tensor_split tile transpose tril triu type_as unbind unflatten unfold unsqueeze view"
    " view_as view_as_complex view_as_real vstack"
    # fresh tensors
    " arange eye full full_like linspace new_full new_ones new_zeros one_hot ones ones_like"
    " scalar_tensor tril_indices triu_indices zeros zeros_like"
    # indices
    " bucketize embedding gather index index_add index_copy index_fill index_put index_select"
    " masked_select nonzero scatter scatter_add scatter_reduce take take_along_dim"
    # reductions, sums and orders
    " all amax amin aminmax any argmax argmin argsort count_nonzero cummax cummin cumprod cumsum"
    " dist kthvalue linalg_norm linalg_vector_norm logcumsumexp logsumexp max mean median min"
    " mode nanmean nanmedian nansum norm prod sort std std_mean sum sum_to_size topk trace var"
    " var_mean"
    # products
    " addbmm addmm addmv addr baddbmm bilinear bmm cdist chain_matmul cosine_similarity cross"
    " dot einsum ger inner kron linalg_cross linalg_matmul linalg_matrix_power linalg_multi_dot"
    " linalg_vecdot linear matmul matrix_power mm mv outer tensordot vdot"
    # layers and losses
    " _log_softmax _safe_softmax _softmax adaptive_avg_pool1d adaptive_avg_pool2d"
    " adaptive_avg_pool3d avg_pool1d avg_pool2d avg_pool3d binary_cross_entropy"
    " binary_cross_entropy_with_logits conv1d conv2d conv3d conv_transpose1d conv_transpose2d"
    " conv_transpose3d convolution cross_entropy_loss glu group_norm huber_loss kl_div l1_loss"
    " layer_norm log_softmax max_pool1d max_pool2d max_pool2d_with_indices max_pool3d mse_loss"
    " native_layer_norm nll_loss rms_norm smooth_l1_loss softmax where",
) | named(
    "prims",
    "amax amin bitwise_not digamma exp2 fma fmax fmin hypot iota log2 maximum minimum nextafter"
    " prod reciprocal rsqrt sign signbit sum trunc var xor_sum",
)
"""Operators that only compute, whose kernels check their arguments; without elementwise ones."""

MATCHED: Final = named(
    "aten",
    "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _addmm_activation"
    " _batch_norm_with_update_functional _cdist_forward _convolution _embedding_bag"
    " _embedding_bag_forward_only _fft_c2c _fft_c2r _fft_r2c _fused_rms_norm"
    " _fused_rms_norm_backward _grouped_mm _int_mm _log_softmax_backward_data"
    " _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _scaled_mm"
    " _softmax_backward_data _unsafe_view _weight_int4pack_mm _weight_int8pack_mm"
    " _weight_norm_interface avg_pool2d_backward avg_pool3d_backward batch_norm"
    " convolution_backward embedding_bag embedding_dense_backward"
    " fake_quantize_per_channel_affine fake_quantize_per_tensor_affine glu_backward grid_sampler"
    " grid_sampler_2d grid_sampler_3d huber_loss_backward instance_norm"
    " max_pool2d_with_indices_backward mse_loss_backward native_batch_norm native_group_norm"
    " native_group_norm_backward native_layer_norm_backward nll_loss_backward nll_loss_forward"
    " select_backward slice_backward smooth_l1_loss_backward sym_numel sym_size"
    " upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d"
    " upsample_nearest2d upsample_nearest3d upsample_trilinear3d",
)
"""Operators that only compute, but whose kernels do not check sizes, indices or scales: a wrong
call reads memory beyond a tensor. Norms that keep statistics are among them; legality checks the
flag by which a call writes the statistics."""

DRAWING_IF_ASKED: Final = named(
    "aten", "dropout feature_dropout native_dropout rrelu scaled_dot_product_attention"
)
"""Operators that sample random numbers depending on a probability or a flag. Legality checks these
arguments."""

DRAWING: Final = named(
    "aten",
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention"
    " _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu"
    " alpha_dropout bernoulli feature_alpha_dropout multinomial normal_functional rand rand_like"
    " randint randint_like randn randn_like randperm",
)
"""Operators that always sample random numbers: only for rules with `redraws`."""

_STRUCTURE: Final = frozenset({LITERAL, CONS, NIL, GETITEM})
_HELP: Final = "a rule in Python may name any operator"


def objection(operator: Operator, use: Use, redraws: bool) -> tuple[str, str] | None:
    """Return the reason for which a rule in text may not use an operator, and a help line.

    Arguments:
        operator: the operator that the rule names.
        use: "match" if the pattern names it, "call" if the replacement does.
        redraws: True if the rule may sample random numbers anew.

    Return None if the rule may use it.
    """
    name = canonical_packet(operator.name)
    if operator in _STRUCTURE or name in CALLED or name in DRAWING_IF_ASKED or _elementwise(name):
        return None
    if name in DRAWING:
        return None if redraws else ("it draws random numbers", "declare it: write `redraws`")
    if name in MATCHED:
        return None if use == "match" else ("its kernels do not check all arguments", _HELP)
    return "it is not known to do no more than compute", _HELP


@cache
def _elementwise(name: str) -> bool:
    """Return whether torch tags every overload that a rule can mean as elementwise."""
    if not name.startswith(("aten.", "prims.")):
        return False
    found = [o for o in overloads(name) if not o.mutates]
    return bool(found) and all(o.only_computes and "pointwise" in o.tags for o in found)
