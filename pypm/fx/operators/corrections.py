"""Facts about operators that torch's schemas lack: corrections, aliases and names, as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pypm.lang.overloads import COMPARISONS, INFIX

__all__ = [
    "ALIASES",
    "CASTS",
    "CAST_METHODS",
    "COMMUTATIVE",
    "CONTIGUOUS",
    "COPIES",
    "DIM_NAMES",
    "EXCHANGED",
    "FILLED",
    "FORMS",
    "FUNCTIONS",
    "IGNORED",
    "LAYOUT_READERS",
    "LITERALS",
    "MIRRORS",
    "OF_SEVERAL",
    "OUTPUT_RANKED",
    "POINTWISE",
    "REDUCTIONS",
    "RENAMED",
    "RESIZERS",
    "SYNONYMS",
    "named",
    "words",
]


def words(*lines: str) -> frozenset[str]:
    """Return the words of some lines."""
    return frozenset(" ".join(lines).split())


def named(namespace: str, *lines: str) -> frozenset[str]:
    """Return the dotted names of what a namespace has, given by their last parts.

    >>> sorted(named("aten", "relu gelu"))
    ['aten.gelu', 'aten.relu']
    """
    return frozenset(f"{namespace}.{word}" for word in words(*lines))


COMMUTATIVE: Final[Mapping[str, tuple[tuple[str, object], ...]]] = {
    infix.name: infix.commutes
    for infix in (*INFIX.values(), *COMPARISONS.values())
    if infix.commutes is not None
} | dict.fromkeys(
    sorted(
        named(
            "aten",
            "maximum minimum fmax fmin logical_and logical_or logical_xor"
            " bitwise_and bitwise_or bitwise_xor logaddexp logaddexp2 hypot gcd lcm",
        )
        | named(
            "prims",
            "add mul maximum minimum fmax fmin eq ne bitwise_and bitwise_or bitwise_xor hypot gcd",
        )
    ),
    (),
)
"""Operators whose first two children may be swapped, where the attributes are as given."""

POINTWISE: Final = named(
    "aten",
    "_to_copy to _prelu_kernel prelu hardswish hardswish_backward hardsigmoid_backward"
    " hardtanh_backward hardshrink_backward softshrink_backward softplus_backward"
    " elu_backward leaky_relu_backward mish_backward log_sigmoid log_sigmoid_backward"
    " infinitely_differentiable_gelu_backward rsub floor_divide isclose isreal complex polar"
    " where.ScalarOther where.ScalarSelf where.Scalar masked_fill.Tensor true_divide.Scalar"
    " copysign ldexp _add_relu lift_fresh_copy",
) | named(
    "prims",
    "abs acos acosh add asin asinh atan atan2 atanh bessel_i0 bessel_i0e bessel_i1 bessel_i1e"
    " bessel_j0 bessel_j1 bitwise_and bitwise_or bitwise_xor cbrt ceil clone"
    " convert_element_type cos cosh div eq erf erf_inv erfc erfcx exp expm1 floor fmod gcd ge"
    " gt isfinite le lgamma log log10 log1p lt mul ne ndtri neg pow remainder round shift_left"
    " shift_right_arithmetic sin sinh spherical_bessel_j0 sqrt sub tan tanh where zeta",
)
"""Packets, and single overloads, that are elementwise though torch does not tag them."""

LAYOUT_READERS: Final = (
    named(
        "aten",
        "view _unsafe_view _reshape_alias view_copy view_as as_strided as_strided_ as_strided_copy"
        " as_strided_scatter view_as_real view_as_complex stride sym_stride storage_offset"
        " sym_storage_offset is_contiguous is_non_overlapping_and_dense set_ resize_ resize",
    )
    | named(
        "aten",
        "_ctc_loss _ctc_loss_backward _efficient_attention_backward _efficient_attention_forward"
        " _embedding_bag _embedding_bag_forward_only _flash_attention_backward"
        " _flash_attention_forward _flash_attention_forward_no_dropout_inplace"
        " _pdist_backward _pdist_forward _scaled_dot_product_cudnn_attention"
        " _scaled_dot_product_cudnn_attention_backward _scaled_dot_product_efficient_attention"
        " _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention"
        " _scaled_dot_product_flash_attention_backward"
        " _scaled_dot_product_flash_attention_for_cpu"
        " _scaled_dot_product_flash_attention_for_cpu_backward"
        " _scaled_dot_product_fused_attention_overrideable"
        " _scaled_dot_product_fused_attention_overrideable_backward"
        " native_group_norm native_group_norm_backward",
    )  # their callers make inputs contiguous; not all of them look
    | named("prims", "as_strided as_strided_scatter collapse_view copy_strided")
    | named("torch.Tensor", "stride storage_offset is_contiguous data_ptr storage")
)
"""Operators whose result, or whose success, depends on the strides of their inputs."""

CONTIGUOUS: Final = named(
    "aten",
    "mm addmm bmm baddbmm linear softmax log_softmax _softmax _log_softmax sum mean amax amin",
    "argmax argmin layer_norm embedding lift_fresh_copy",
)
"""Operators whose result is contiguous, whatever the strides of their inputs are."""

LITERALS: Final = named(
    "aten", "full lift lift_fresh lift_fresh_copy scalar_tensor tensor"
) | named("prims", "full scalar_tensor")
"""Packets whose calls may stand for one number."""

COPIES: Final = named(
    "aten", "clone contiguous reshape _unsafe_view to _to_copy expand_copy"
) | named("prims", "convert_element_type")
"""Packets that give the elements of their first input, maybe in another order or type."""

DIM_NAMES: Final = words(
    "dim dims dim0 dim1 dim2 axis axis0 axis1 axes start_dim end_dim dimension dimensions",
    "dims_self dims_other sumdim source destination",
)
"""Parameters of type int or int[] that count dimensions, from the end where negative."""

OUTPUT_RANKED: Final = named("aten", "unsqueeze unsqueeze_copy stack diag_embed")
"""Packets whose dims count the dimensions of the output: one more than of the first input."""

RESIZERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        sorted(
            named(
                "aten",
                "view view_copy _unsafe_view _reshape_alias expand expand_copy",
            )
        ),
        "size",
    ),
    "aten.reshape": "shape",
    "prims.reshape": "shape",
}
"""Packets whose size argument is the output's shape, so that -1 in it can be resolved."""

SYNONYMS: Final[Mapping[str, tuple[str, ...]]] = {
    "self": ("input", "tensor", "x", "a"),
    "input": ("self",),
    "dim": ("axis",),
    "dim0": ("axis0",),
    "dim1": ("axis1",),
    "keepdim": ("keepdims",),
    "train": ("training",),
    "split_size": ("split_size_or_sections",),
    "size": ("shape",),
    "dims": ("dim",),
    "cudnn_enable": ("cudnn_enabled",),
}
"""Names that torch's Python functions use for a schema's parameter."""

REDUCTIONS: Final[Mapping[object, int]] = {"none": 0, "mean": 1, "sum": 2}
"""The `reduction=` of losses, as their schemas number it."""

IGNORED: Final = words("size_average reduce inplace out return_indices generator _stacklevel")
"""Python parameters that a schema may lack, where they are None, False or at their default."""

OF_SEVERAL: Final = named(
    "torch.nn.functional",
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d embedding_bag",
    "fractional_max_pool2d fractional_max_pool3d",
)
"""Functions that return one result of several of the operator of the same name: another value."""

FUNCTIONS: Final[Mapping[str, str]] = {
    "operator.truediv": "aten.div",
    "operator.floordiv": "aten.floor_divide",
    "operator.mod": "aten.remainder",
    "operator.and_": "aten.bitwise_and",
    "operator.or_": "aten.bitwise_or",
    "operator.xor": "aten.bitwise_xor",
    "operator.invert": "aten.bitwise_not",
    "operator.inv": "aten.bitwise_not",
    "operator.lshift": "aten.__lshift__",
    "operator.rshift": "aten.__rshift__",
    "operator.pos": "aten.positive",
    "operator.iadd": "aten.add_",
    "operator.isub": "aten.sub_",
    "operator.imul": "aten.mul_",
    "operator.itruediv": "aten.div_",
    "operator.ifloordiv": "aten.floor_divide_",
    "operator.imod": "aten.remainder_",
    "operator.ipow": "aten.pow_",
    "operator.iand": "aten.bitwise_and_",
    "operator.ior": "aten.bitwise_or_",
    "operator.ixor": "aten.bitwise_xor_",
    "builtins.abs": "aten.abs",
    "builtins.pow": "aten.pow",
    "builtins.round": "aten.round",
    "torch.tensor": "aten.scalar_tensor",
    "torch.nn.functional.cross_entropy": "aten.cross_entropy_loss",
    "torch.Tensor.type": "aten.to",
    "torch.Tensor.__add__": "aten.add",
    "torch.Tensor.__radd__": "aten.add",
    "torch.Tensor.__mul__": "aten.mul",
    "torch.Tensor.__rmul__": "aten.mul",
    "torch.Tensor.__sub__": "aten.sub",
    "torch.Tensor.__truediv__": "aten.div",
    "torch.Tensor.__matmul__": "aten.matmul",
    "torch.Tensor.__pow__": "aten.pow",
    "torch.Tensor.__neg__": "aten.neg",
    "torch.Tensor.__rsub__": "aten.rsub",
    "torch.Tensor.__floordiv__": "aten.floor_divide",
    "torch.Tensor.__mod__": "aten.remainder",
    "torch.Tensor.__abs__": "aten.abs",
    "torch.Tensor.__invert__": "aten.bitwise_not",
    **{f"torch.Tensor.__{name}__": f"aten.{name}" for name in ("lt", "le", "gt", "ge", "eq", "ne")},
}
"""Python functions whose packet is not the one of their own name."""

CASTS: Final = frozenset({"prims.convert_element_type", "aten._to_copy", "aten.to"})
"""Operators that convert to a dtype; the last two may change the device, too."""

CAST_METHODS: Final[Mapping[str, str]] = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "int": "int32",
    "long": "int64",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
    "bool": "bool",
}
"""Methods that are `to` with a dtype."""

RENAMED: Final[Mapping[str, Mapping[str, str]]] = {
    "torch.nn.functional.embedding": {"input": "indices"},
}
"""Parameters of one Python function that go by other names than the packet's, beyond SYNONYMS."""

FILLED: Final[Mapping[str, Mapping[str, object]]] = {
    "aten.batch_norm": {"cudnn_enabled": True},
    "aten.instance_norm": {"cudnn_enabled": True},
}
"""Arguments without a default that torch's Python function passes by itself."""

FORMS: Final[Mapping[str, tuple[str, str, bool, Mapping[str, object]]]] = {
    "aten.rsub": ("aten.sub", "Tensor", True, {}),
    "aten.square": ("aten.pow", "Tensor_Scalar", False, {"exponent": 2}),
    "aten.floor_divide": ("aten.div", "Tensor_mode", False, {"rounding_mode": "floor"}),
    "aten.clamp_min": ("aten.clamp", "", False, {"max": None}),
    "aten.clamp_max": ("aten.clamp", "", False, {"min": None}),
}
"""Packets that compute what an overload of another one computes, bit for bit: that packet and
overload, whether the first two arguments change places, and arguments that the name says."""

MIRRORS: Final[Mapping[str, str]] = {
    f"{namespace}.{one}": f"{namespace}.{other}"
    for namespace in ("aten", "prims")
    for one, other in (("lt", "gt"), ("gt", "lt"), ("le", "ge"), ("ge", "le"))
}
"""Packets that compute the same as each other with the first two arguments exchanged."""

EXCHANGED: Final[Mapping[str, str]] = {
    "torch.Tensor.__rpow__": "aten.pow",
    "torch.Tensor.__rmatmul__": "aten.matmul",
    "torch.Tensor.__rmod__": "aten.remainder",
    "torch.Tensor.__rfloordiv__": "aten.floor_divide",
    "torch.Tensor.where": "aten.where",
    "torch.Tensor.polygamma": "aten.polygamma",
}
"""Functions that call a packet with their first two arguments exchanged."""

ALIASES: Final[Mapping[str, str]] = {
    f"aten.{alias}": f"aten.{name}"
    for name, aliases in {
        "mul": "multiply",
        "sub": "subtract",
        "div": "divide true_divide",
        "abs": "absolute",
        "neg": "negative",
        "gt": "greater",
        "ge": "greater_equal",
        "lt": "less",
        "le": "less_equal",
        "ne": "not_equal",
        "clamp": "clip",
        "cat": "concat concatenate",
        "transpose": "swapaxes swapdims",
        "movedim": "moveaxis",
        "trunc": "fix",
        "acos": "arccos",
        "acosh": "arccosh",
        "asin": "arcsin",
        "asinh": "arcsinh",
        "atan": "arctan",
        "atanh": "arctanh",
        "atan2": "arctan2",
        "bitwise_and": "__and__",
        "bitwise_or": "__or__",
        "bitwise_xor": "__xor__",
        "digamma": "special_digamma special_psi",
        "erf": "special_erf",
        "erfc": "special_erfc",
        "erfinv": "special_erfinv",
        "exp2": "special_exp2",
        "expm1": "special_expm1",
        "i0": "special_i0",
        "lgamma": "special_gammaln",
        "log1p": "special_log1p",
        "logit": "special_logit",
        "logsumexp": "special_logsumexp",
        "round": "special_round",
        "sigmoid": "special_expit",
        "sinc": "special_sinc",
        "xlogy": "special_xlogy",
    }.items()
    for alias in aliases.split()
}
"""Packets that torch documents as aliases, and the packet they are aliases of."""
