"""Effects of calls for which no schema tells them: as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pypm.fx.operators.corrections import named, words

__all__ = [
    "CALLING_MODULES",
    "CUTS",
    "DRAWING",
    "DRAWING_AT_ZERO",
    "DUALS",
    "EFFECTS",
    "EFFECT_NAMESPACES",
    "FRESH",
    "INPLACE",
    "ISSUED",
    "MAY_BE_GIVEN",
    "MODES",
    "MODE_NAMESPACES",
    "PURE",
    "PURE_HIGHER_ORDER",
    "READ_ATTRIBUTES",
    "RESHAPING",
    "STATEFUL_MODULES",
    "STATEFUL_NORMS",
    "SURE_VIEWS",
    "UNINITIALISED",
    "UNMARKED_WRITES",
    "VIEWS",
    "VIEW_ATTRIBUTES",
    "WAITS",
]


DRAWING: Final = (
    named("prims", "inductor_seed inductor_seeds normal uniform")
    | named("rngprims", "philox_rand run_and_save_rng_state run_with_rng_state")
    | named(
        "torch.nn.functional",
        "dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout gumbel_softmax",
        "fractional_max_pool2d fractional_max_pool2d_with_indices fractional_max_pool3d",
        "fractional_max_pool3d_with_indices multi_head_attention_forward",
    )
)
"""Packets and Python functions that sample random numbers, although torch may not tag them."""

DRAWING_AT_ZERO: Final = named("aten", "native_dropout _fused_dropout")
"""Kinds of dropout that sample random numbers also where they drop nothing."""

STATEFUL_NORMS: Final[Mapping[str, str]] = {
    "aten.batch_norm": "training",
    "aten.native_batch_norm": "training",
    "aten._batch_norm_impl_index": "training",
    "aten.cudnn_batch_norm": "training",
    "aten.miopen_batch_norm": "training",
    "aten.instance_norm": "use_input_stats",
    "aten.batch_norm_update_stats": "",
    "aten.batch_norm_gather_stats": "",
    "aten.batch_norm_gather_stats_with_counts": "",
}
"""Packets that write running statistics, which their schemas do not say, and under which flag; an
empty one stands for any call.
"""

UNMARKED_WRITES: Final = (
    named("aten", "_backward backward _copy_from _copy_from_and_resize _propagate_xla_data")
    | named("fsdp", "all_gather_copy_in record_grad_output_stream")
    | named(
        "symm_mem",
        "nccl_put_signal nccl_put_with_signal nccl_wait_for_signal nvshmem_put_with_signal",
        "nvshmem_wait_for_signal",
    )
)
"""Packets that write their arguments, or what belongs to these, though neither their schemas nor
their names say so.
"""

RESHAPING: Final = named(
    "aten",
    "_mkldnn_transpose_ _resize_output_ resize_as_sparse_ set_data sparse_resize_",
    "sparse_resize_and_clear_",
) | named("prims", "resize")
"""Packets that give their argument another shape or other memory, although torch does not tag them.
"""

MAY_BE_GIVEN: Final = named("aten", "lift") | named("prims", "device_put")
"""Packets whose value may be their argument, although their schemas promise fresh tensors."""

VIEWS: Final = (
    named("aten", "_unsafe_view unsafe_split unsafe_split_with_sizes unsafe_chunk")
    | named("_c10d_functional", "wait_tensor")
    | named("inductor", "_alloc_from_pool _reinterpret_tensor")
    | named("fsdp", "all_gather_copy_in")
    | named("export", "access_subclass_inner_tensor")
)
"""Packets that are views although their schemas promise fresh tensors."""

SURE_VIEWS: Final = named(
    "aten",
    "view expand permute transpose t select slice unsqueeze squeeze detach alias as_strided",
    "diagonal unfold unbind split split_with_sizes chunk movedim narrow view_as expand_as",
    "_unsafe_view unsafe_split unsafe_split_with_sizes unsafe_chunk numpy_T mT adjoint",
)
"""Packets whose value shares the memory of the first argument in any case."""

FRESH: Final = named(
    "aten",
    "linear matmul bilinear outer inner conv1d conv2d conv3d conv_transpose1d conv_transpose2d",
    "conv_transpose3d layer_norm group_norm instance_norm batch_norm rms_norm softmax log_softmax",
    "log_sigmoid relu6 selu prelu square float_power scaled_dot_product_attention pad one_hot",
    "where argsort argwhere adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d",
    "adaptive_max_pool1d avg_pool1d max_pool1d max_pool2d max_pool3d upsample_bicubic2d",
    "upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d",
    "upsample_nearest3d upsample_trilinear3d std std_mean var var_mean max min nanmean",
    "cross_entropy_loss nll_loss kl_div l1_loss cosine_embedding_loss hinge_embedding_loss",
    "margin_ranking_loss poisson_nll_loss triplet_margin_loss cosine_similarity cdist",
    "pairwise_distance hstack vstack dstack column_stack tile isclose isfinite isreal linalg_norm",
    "linalg_matrix_norm linalg_vecdot linalg_cross fft_fft fft_ifft fft_rfft fft_irfft fft_fft2",
    "fft_ifft2 fft_rfft2 fft_irfft2 special_ndtr",
)
"""Composite packets without alias marks whose values are known to be of their own memory.

Torch checks the schemas of operators with kernels of their own, but not those of composite ones.
"""

UNINITIALISED: Final = named(
    "aten", "empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize"
) | named("prims", "empty empty_strided empty_permuted")
"""Packets that return uninitialized memory."""

OVERWRITING: Final = named("aten", "copy fill zero zeros_like ones_like full_like")
"""Packets that read no element of their first argument."""

ISSUED: Final = named(
    "_c10d_functional",
    "all_reduce all_reduce_coalesced all_gather_into_tensor all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor reduce_scatter_tensor_coalesced all_to_all_single broadcast",
)
"""Packets that issue a collective for all processes of a group, and otherwise only compute."""

WAITS: Final = named("_c10d_functional", "wait_tensor")
"""Packets that wait for an issued collective."""

EFFECT_NAMESPACES: Final = words(
    "_c10d_functional _c10d_functional_autograd _dtensor c10d c10d_functional profiler symm_mem"
)
"""Namespaces of operators that talk to other processes or to a profiler."""

EFFECTS: Final = (
    named(
        "aten",
        "_assert_async _assert_scalar _assert_tensor_metadata sym_constrain_range",
        "sym_constrain_range_for_size _print _functional_assert_async _functional_assert_scalar",
        "_functional_sym_constrain_range _functional_sym_constrain_range_for_size",
        "_record_function_enter _record_function_exit",
    )
    | named("prims", "_sink_tokens _make_token")
    | named("torch", "_check _check_is_size _assert _assert_async _log_api_usage_once")
    | named("builtins", "print")
)
"""Calls that must be neither removed nor merged, though they write to no tensor."""

MODES: Final = (
    named("torch", "_set_grad_enabled manual_seed set_rng_state set_default_dtype")
    | named("torch.amp.autocast_mode", "_enter_autocast _exit_autocast")
    | named("torch.autograd.grad_mode", "_enter_inference_mode _exit_inference_mode")
    | named("torch.random", "manual_seed set_rng_state seed")
    | named("torch._functorch.predispatch", "_vmap_increment_nesting _vmap_decrement_nesting")
    | named("torch._C._functorch", "_grad_increment_nesting _grad_decrement_nesting")
)
"""Functions that change how later calls compute, differentiate or sample."""

MODE_NAMESPACES: Final = frozenset({"streams"})
"""Namespaces of operators that change such modes."""

PURE_HIGHER_ORDER: Final = frozenset(
    {"associative_scan", "flex_attention", "flex_attention_backward"}
)
"""Higher-order operators that only compute fresh outputs."""

PURE: Final = (
    named(
        "operator",
        "add sub mul truediv floordiv mod pow neg pos abs matmul and_ or_ xor invert inv lshift",
        "rshift eq ne lt le gt ge not_ truth is_ is_not contains concat index getitem",
    )
    | named(
        "builtins",
        "abs bool complex dict divmod float int isinstance len list max min pow range round",
        "slice sorted str sum tuple type zip",
    )
    | named(
        "math",
        "acos acosh asin asinh atan atan2 atanh ceil cos cosh erf exp fabs floor fmod gcd hypot",
        "isfinite isinf isnan isqrt lgamma log log10 log1p log2 pow prod sin sinh sqrt tan tanh",
        "trunc",
    )
    | named(
        "torch",
        "sym_float sym_int sym_ite sym_max sym_min sym_not sym_sqrt sym_sum Size device dtype",
        "is_tensor is_floating_point is_complex is_grad_enabled finfo iinfo promote_types",
        "result_type numel is_autocast_enabled get_autocast_dtype broadcast_shapes",
        "norm split meshgrid block_diag cartesian_prod tensordot unique unique_consecutive",
        "stft istft lu einsum broadcast_tensors atleast_1d atleast_2d atleast_3d cdist",
        "unravel_index",
    )
    | named(
        "torch.Tensor",
        "size dim ndimension numel nelement stride storage_offset is_contiguous get_device",
        "element_size is_floating_point is_complex is_set_to is_pinned __len__ __contains__ type",
        "__getitem__ split norm new new_tensor new_zeros new_ones new_full new_empty cpu cuda",
        "unique unique_consecutive stft istft unflatten __rsub__ __rtruediv__ __rdiv__ __rpow__",
        "__rmatmul__ __rfloordiv__ __rmod__ __rand__ __ror__ __rxor__",
        "cdouble cfloat __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __abs__",
        "__invert__ __floordiv__ __mod__ __div__ eq item tolist float double half bfloat16 int",
        "long short char byte bool",
    )
    | named(
        "torch.nn.functional",
        "interpolate upsample upsample_nearest upsample_bilinear normalize unfold fold",
        "_threshold linear_cross_entropy",
        "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
        "adaptive_avg_pool2d adaptive_avg_pool3d lp_pool1d lp_pool2d lp_pool3d",
        "max_unpool1d max_unpool2d max_unpool3d softmin softsign tanhshrink hardtanh relu6",
        "affine_grid grid_sample local_response_norm binary_cross_entropy",
        "binary_cross_entropy_with_logits cross_entropy ctc_loss cosine_embedding_loss",
        "gaussian_nll_loss hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss",
        "mse_loss multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss nll_loss",
        "poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss",
    )
    | named("torch._C._autograd", "_get_data_attr")
)
"""Python functions that only compute; their value may share memory with their arguments."""

CUTS: Final = frozenset({"aten.detach", "aten.data", "torch._C._autograd._get_data_attr"})
"""Calls whose value has no gradient."""

DUALS: Final = words("make_dual _make_dual")
"""Functions that give a tensor a tangent, by which gradients go forward."""

READ_ATTRIBUTES: Final = words(
    "shape dtype device ndim requires_grad layout itemsize nbytes is_cuda is_cpu is_sparse",
    "is_leaf is_meta is_quantized is_nested names",
)
"""Attributes of a tensor that are not tensors."""

VIEW_ATTRIBUTES: Final = words("T mT H mH real imag data")
"""Attributes of a tensor that share, or may share, its memory."""

INPLACE: Final = words(
    "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor imatmul ilshift irshift",
    "iconcat setitem delitem",
)
"""Functions of the module `operator` that write to their first argument."""

STATEFUL_MODULES: Final = (
    *("BatchNorm", "InstanceNorm", "SyncBatchNorm", "Dropout", "RReLU", "Fractional"),
)
"""Parts of the names of torch's modules that sample, or write statistics, in training."""

CALLING_MODULES: Final = frozenset({"TripletMarginWithDistanceLoss"})
"""Torch's modules that call functions passed to them."""
