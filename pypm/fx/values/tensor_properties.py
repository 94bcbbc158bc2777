"""Properties of values that guards ask for: shape, dtype, contiguity and the like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch.types import IntLikeType

from pypm.core.guards import equal
from pypm.core.terms import UNDEFINED, Value
from pypm.fx.values.symbolic import Dimension, Symbolic, sizes

__all__ = ["TENSOR_PROPERTIES", "literal_properties", "tensor_property"]

_SYMBOLIC_NUMBER: Final[Mapping[str, object]] = {"numel": 1, "rank": 0, "shape": ()}
_NUMBER: Final[Mapping[str, object]] = {**_SYMBOLIC_NUMBER, "is_constant": True}
_NO_NUMBER: Final[Mapping[str, object]] = {"is_constant": True}


def literal_properties(value: Value) -> Mapping[str, Value]:
    """Return the derived attributes of a literal."""
    if isinstance(value, Symbolic):
        return _SYMBOLIC_NUMBER
    return _NO_NUMBER if value is None or isinstance(value, str) else _NUMBER


TENSOR_PROPERTIES: Final = ("rank", "shape", "numel", "dtype", "device", "is_contiguous")
"""The derived attributes that are read off a term's value."""


def tensor_property(value: object, key: str) -> Value:
    """Return one of `TENSOR_PROPERTIES` of a tensor or its `TensorMetadata`, or UNDEFINED."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return UNDEFINED
    match key:
        case "rank":
            return len(shape)
        case "shape":
            return sizes(shape)
        case "numel":
            count: Dimension | float = 1
            for n in sizes(shape):
                count = count * n
            return count
        case "dtype":
            return getattr(value, "dtype", UNDEFINED)
        case "device":
            found = getattr(value, "device", None)
            return UNDEFINED if found is None else found.type
        case _:
            return _is_contiguous(value, shape)


def _is_contiguous(value: object, shape: Sequence[IntLikeType]) -> Value:
    """Return whether sizes and strides are contiguous; asking the tensor could add a guard."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return UNDEFINED
        strides = sizes(value.stride())
    else:
        found = getattr(value, "stride", None)
        if found is None:
            return UNDEFINED
        strides = sizes(found)
    return _are_contiguous(sizes(shape), strides)


def _are_contiguous(shape: tuple[Dimension, ...], strides: tuple[Dimension, ...]) -> Value:
    verdict: object = True
    expected: Dimension | float = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if equal(length, 0) is True:
            return True
        is_one, is_packed = equal(length, 1), equal(stride, expected)
        if is_one is False and is_packed is False:
            verdict = False
        elif is_one is not True and is_packed is not True and verdict is True:
            verdict = UNDEFINED
        expected = expected * length
    return verdict
