"""Modules of torch.nn that make one call of a function on their input: as data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from types import FunctionType
from typing import Final

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["MODULES", "ModuleCall", "call_of", "has_own_code"]


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """The call that modules of a class make: a function of the input and of some attributes."""

    function: Callable[..., object]
    names: tuple[str, ...]
    """Parameters of the function that receive the module's attributes of the same names."""
    where: Mapping[str, object] = field(default_factory=dict)
    """Values that attributes must have; otherwise the module computes something else."""
    given: tuple[str, ...] = ()
    """Attributes that must not be None."""

    def is_made_by(self, module: nn.Module) -> bool:
        """Return whether a module of the class makes this call."""
        return all(getattr(module, name) == value for name, value in self.where.items()) and all(
            getattr(module, name) is not None for name in self.given
        )


_EVAL: Final = {"training": False}
_CONVOLUTION: Final = ("weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED: Final = (*_CONVOLUTION, "output_padding")
_ZEROS: Final = {"padding_mode": "zeros"}
_INPLACE: Final = ("inplace",)
_MAX_POOL: Final = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
_AVERAGE: Final = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
_BATCH_NORM: Final = ModuleCall(
    F.batch_norm,
    ("running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
    _EVAL,
    ("running_mean", "running_var", "momentum"),
)

MODULES: Final[Mapping[type[nn.Module], ModuleCall]] = {
    nn.AdaptiveAvgPool2d: ModuleCall(F.adaptive_avg_pool2d, ("output_size",)),
    nn.AvgPool2d: ModuleCall(F.avg_pool2d, (*_AVERAGE, "divisor_override")),
    nn.BatchNorm1d: _BATCH_NORM,
    nn.BatchNorm2d: _BATCH_NORM,
    nn.BatchNorm3d: _BATCH_NORM,
    nn.CELU: ModuleCall(F.celu, ("alpha", "inplace")),
    nn.Conv1d: ModuleCall(F.conv1d, _CONVOLUTION, _ZEROS),
    nn.Conv2d: ModuleCall(F.conv2d, _CONVOLUTION, _ZEROS),
    nn.Conv3d: ModuleCall(F.conv3d, _CONVOLUTION, _ZEROS),
    nn.ConvTranspose1d: ModuleCall(F.conv_transpose1d, _TRANSPOSED, _ZEROS),
    nn.ConvTranspose2d: ModuleCall(F.conv_transpose2d, _TRANSPOSED, _ZEROS),
    nn.ConvTranspose3d: ModuleCall(F.conv_transpose3d, _TRANSPOSED, _ZEROS),
    nn.Dropout: ModuleCall(F.dropout, ("p", "training", "inplace"), _EVAL),
    nn.ELU: ModuleCall(F.elu, ("alpha", "inplace")),
    nn.Embedding: ModuleCall(
        F.embedding,
        ("weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"),
        {"max_norm": None},
    ),
    nn.Flatten: ModuleCall(torch.flatten, ("start_dim", "end_dim")),
    nn.GELU: ModuleCall(F.gelu, ("approximate",)),
    nn.GLU: ModuleCall(F.glu, ("dim",)),
    nn.GroupNorm: ModuleCall(F.group_norm, ("num_groups", "weight", "bias", "eps")),
    nn.Hardshrink: ModuleCall(F.hardshrink, ("lambd",)),
    nn.Hardsigmoid: ModuleCall(F.hardsigmoid, _INPLACE),
    nn.Hardswish: ModuleCall(F.hardswish, _INPLACE),
    nn.Hardtanh: ModuleCall(F.hardtanh, ("min_val", "max_val", "inplace")),
    nn.Identity: ModuleCall(torch.ops.aten.alias.default, ()),
    nn.LayerNorm: ModuleCall(F.layer_norm, ("normalized_shape", "weight", "bias", "eps")),
    nn.LeakyReLU: ModuleCall(F.leaky_relu, ("negative_slope", "inplace")),
    nn.Linear: ModuleCall(F.linear, ("weight", "bias")),
    nn.LogSigmoid: ModuleCall(F.logsigmoid, ()),
    nn.LogSoftmax: ModuleCall(F.log_softmax, ("dim",), given=("dim",)),
    nn.MaxPool1d: ModuleCall(torch.max_pool1d, _MAX_POOL, {"return_indices": False}),
    nn.MaxPool2d: ModuleCall(torch.max_pool2d, _MAX_POOL, {"return_indices": False}),
    nn.MaxPool3d: ModuleCall(torch.max_pool3d, _MAX_POOL, {"return_indices": False}),
    nn.Mish: ModuleCall(F.mish, _INPLACE),
    nn.PReLU: ModuleCall(F.prelu, ("weight",)),
    nn.RMSNorm: ModuleCall(F.rms_norm, ("normalized_shape", "weight", "eps")),
    nn.ReLU: ModuleCall(F.relu, _INPLACE),
    nn.ReLU6: ModuleCall(F.hardtanh, ("min_val", "max_val", "inplace")),
    nn.SELU: ModuleCall(F.selu, _INPLACE),
    nn.SiLU: ModuleCall(F.silu, _INPLACE),
    nn.Sigmoid: ModuleCall(torch.sigmoid, ()),
    nn.Softmax: ModuleCall(F.softmax, ("dim",), given=("dim",)),
    nn.Softplus: ModuleCall(F.softplus, ("beta", "threshold")),
    nn.Softshrink: ModuleCall(F.softshrink, ("lambd",)),
    nn.Tanh: ModuleCall(torch.tanh, ()),
}
"""By the class itself: a subclass may compute something else."""


def call_of(module: nn.Module) -> ModuleCall | None:
    """Return the one call that calling a module makes as the module is now; None if unknown."""
    found = MODULES.get(type(module))
    if found is None or has_own_code(module) or not found.is_made_by(module):
        return None
    tensors = (getattr(module, name) for name in found.names)
    return found if all(map(_is_plain, tensors)) else None


def _is_plain(value: object) -> bool:
    return not isinstance(value, torch.Tensor) or type(value) in (torch.Tensor, nn.Parameter)


_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_own_code(module: nn.Module) -> bool:
    """Return whether calling a module runs code besides torch's: hooks, replaced methods."""
    return (
        any(getattr(module, name) for name in _HOOKS)
        or any(getattr(torch.nn.modules.module, f"_global{name}") for name in _HOOKS)
        or module._compiled_call_impl is not None
        or any(callable(getattr(type(module), name, None)) for name in vars(module))
        or not all(map(_is_torchs, _functions(type(module))))
    )


def _functions(kind: type[nn.Module]) -> Iterator[FunctionType]:
    """The methods that a class and its bases define, without those of all modules."""
    for base in takewhile(lambda base: base is not nn.Module, kind.__mro__):
        yield from (value for value in vars(base).values() if isinstance(value, FunctionType))


def _is_torchs(function: FunctionType) -> bool:
    return function.__code__.co_filename.startswith(_FOLDER)


_FOLDER: Final = str(Path(nn.modules.__file__).parent)
