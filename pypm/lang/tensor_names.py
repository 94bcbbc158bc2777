"""Properties of tensors by the names that torch has for them, in guards: `x.ndim`, `x.size(0)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Final

from pypm.core.guards import FUNCTIONS, Apply, Attribute, Expression, Function
from pypm.core.record_expressions import Select, selected

__all__ = ["attribute", "method", "part"]

_ATTRIBUTES: Final = {"ndim": "rank"}
_METHODS: Final = {
    "dim": "rank",
    "ndimension": "rank",
    "numel": "numel",
    "nelement": "numel",
    "size": "shape",
    "is_contiguous": "is_contiguous",
}


def _device_type(device: str) -> str:
    return device.partition(":")[0]


def _device_index(device: str) -> int:
    return int(device.partition(":")[2])


_PARTS: Final[Mapping[str, Mapping[str, Callable[..., object]]]] = {
    "device": {"type": _device_type, "index": _device_index},
    "dtype": {
        name: attrgetter(name)
        for name in ("is_floating_point", "is_complex", "is_signed", "itemsize")
    },
}
"""Functions that read properties of devices, which attributes hold by name, and of dtypes."""
_OF_DTYPES: Final = {
    "is_floating_point": "is_floating_point",
    "is_complex": "is_complex",
    "is_signed": "is_signed",
    "element_size": "itemsize",
}
"""Methods of tensors that return a property of their dtype."""


def attribute(owner: Expression, attribute: str) -> Expression | None:
    """Return an attribute of a tensor by torch's name for it; None if unknown."""
    known = _ATTRIBUTES.get(attribute)
    return None if known is None else selected(owner, known)


def method(owner: Expression, called: str, arguments: tuple[Expression, ...]) -> Expression | None:
    """Return the call of a method of a tensor; None if unknown."""
    if called in _METHODS and not arguments:
        return selected(owner, _METHODS[called])
    if called == "size" and len(arguments) == 1:
        return Apply(FUNCTIONS["item"], (selected(owner, "shape"), *arguments))
    if called in _OF_DTYPES and not arguments:
        return part(selected(owner, "dtype"), _OF_DTYPES[called])
    return None


def part(owner: Expression, name: str) -> Expression | None:
    """Return a property of a device or dtype, such as `x.device.type`; None if unknown."""
    match owner:
        case Attribute(_, attribute) | Apply(Select(attribute=attribute)):
            asked = _PARTS.get(attribute, {}).get(name)
            return asked and Apply(Function(f"{attribute}.{name}", asked), (owner,))
    return None
