"""Inputs of a workload, made from a seed: every worker makes the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from pypm.problems.memory import Input, Spec, dtype_of, sizes_of
from pypm.problems.worker.versions import Function

__all__ = ["inputs_maker"]

_INTEGERS: Final[Mapping[torch.dtype, tuple[int, int]]] = {
    torch.bool: (0, 2),
    torch.uint8: (0, 256),
    torch.int8: (-128, 128),
    torch.int16: (-1024, 1024),
    torch.int32: (-1024, 1024),
    torch.int64: (-1024, 1024),
}


def inputs_maker(
    specs: Sequence[Spec],
    axes: Mapping[str, int],
    custom: Function | None,
) -> Callable[[int], list[Input]]:
    """Return a function from a seed to the inputs of a workload, in order.

    Arguments:
        specs: the inputs, each with its `type` and what that needs.
        axes: the sizes of all axes, for `custom`.
        custom: the definition's function that makes the inputs, if there is one.

    Random tensors differ for each seed. Numbers do not, since code may be compiled for them. The
    function raises ValueError for an input that is not as its spec says, and whatever `custom`
    raises.
    """
    fixed: dict[str, object] = {}
    torch.manual_seed(0)
    for spec in specs:
        name = str(spec["name"])
        match spec["type"]:
            case "scalar":
                fixed[name] = spec["value"]
            case "random" if spec["shape"] is None:
                fixed[name] = _random((), dtype_of(spec)).item()
            case "safetensors":
                fixed[name] = _loaded(str(spec["path"]), str(spec["key"]))

    def make(seed: int) -> list[Input]:
        torch.manual_seed(seed)
        random.seed(seed)
        if custom is not None:
            made = custom(dict(axes), torch.device("cpu"))
            if not isinstance(made, dict):
                raise ValueError(f"the custom inputs are not a dict: {type(made).__name__}")
        else:
            made = fixed
        return [_checked(made, spec) for spec in specs]

    return make


def _checked(made: Mapping[str, object], spec: Spec) -> Input:
    """Return an input, drawn if it is not among those that are made already."""
    name, shape = str(spec["name"]), spec["shape"]
    if spec["type"] == "random" and shape is not None:
        return _random(sizes_of(spec), dtype_of(spec))
    if name not in made:
        raise ValueError(f"the input `{name}` was not made")
    value = made[name]
    if shape is None:
        if not isinstance(value, (bool, int, float)):
            raise ValueError(f"the input `{name}` is not a number")
        return value
    if not isinstance(value, Tensor):
        raise ValueError(f"the input `{name}` is not a tensor")
    found = (tuple(value.shape), value.dtype)
    if found != (sizes_of(spec), dtype_of(spec)):
        raise ValueError(
            f"the input `{name}` is {found[1]} of {list(found[0])}, not "
            f"{dtype_of(spec)} of {list(sizes_of(spec))}"
        )
    return value.contiguous()


def _random(sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if dtype in _INTEGERS:
        low, high = _INTEGERS[dtype]
        return torch.randint(low, high, sizes, dtype=dtype)
    if dtype.itemsize == 1:
        return torch.randn(sizes).clamp_(-2, 2).to(dtype)
    return torch.randn(sizes, dtype=dtype)


def _loaded(path: str, key: str) -> Tensor:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        if key not in file.keys():  # noqa: SIM118  (not a mapping)
            raise ValueError(f"there is no tensor `{key}` in `{path}`")
        found: Tensor = file.get_tensor(key)
        return found
