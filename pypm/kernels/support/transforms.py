"""Operators under transforms of torch: their references are differentiated and batched."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from pypm.torch_internals import (
    CustomOpDef,
    TransformType,
    are_functorch_transforms_active,
    make_autograd_impl,
    pytree,
    retrieve_current_functorch_interpreter,
)

__all__ = ["InputGradients", "backward_of", "follow", "replaced", "tensors_of"]

T = TypeVar("T")
InputGradients: TypeAlias = tuple[Tensor | Sequence[Tensor | None] | None, ...]
"""For each input, its gradient; None for constants, and where none is needed."""


def follow(operator: CustomOpDef, reference: Callable[..., object]) -> None:
    """Compute an operator by its reference where torch transforms it.

    These are the transforms of `torch.func` (`grad`, `vjp`, `jvp`, `vmap`, `hessian` and others),
    and all calls whose arguments have tangents of forward-mode differentiation: an operator of
    `torch.library` would fail under the former, and would drop the tangents.
    """
    operator.reference = reference  # type: ignore[attr-defined]
    original = make_autograd_impl(operator._opoverload, operator)

    def at_autograd(keys: object, *args: object, **kwargs: object) -> object:
        given = [*tensors_of((args, tuple(kwargs.values())))]
        if _is_differentiated(given):
            return reference(*args, **kwargs)
        return original(keys, *args, **kwargs)

    register: Callable[..., None] = operator._lib.impl
    for key in ("AutogradCPU", "AutogradCUDA", "AutogradMeta"):  # go before torch's "Autograd"
        register(operator._name, at_autograd, key, with_keyset=True)
    register(operator._name, reference, "FuncTorchBatched")


def _is_differentiated(given: Sequence[Tensor]) -> bool:
    """Return whether a transform of `torch.func` differentiates what is computed from tensors, or
    they have tangents of `torch.autograd.forward_ad`.
    """
    if not are_functorch_transforms_active():
        return _have_tangents(given)
    if retrieve_current_functorch_interpreter().key() == TransformType.Jvp:
        return True
    return torch.is_grad_enabled() and any(x.requires_grad for x in given)


class _TangentContext(Protocol):
    """The field of autograd's context that `_Tangents` uses."""

    answer: dict[str, bool]


class _Tangents(torch.autograd.Function):
    """Sets `found` in its first argument, a dictionary, if one of the others has a tangent.

    `unpack_dual` would tell as well, but it leaves a call in the graph of a trace.
    """

    @staticmethod
    def forward(ctx: _TangentContext, answer: dict[str, bool], *tensors: Tensor) -> None:
        ctx.answer = answer

    @staticmethod
    def jvp(ctx: _TangentContext, *tangents: Tensor | None) -> None:
        ctx.answer["found"] = True


def _have_tangents(given: Sequence[Tensor]) -> bool:
    answer = {"found": False}
    _Tangents.apply(answer, *given)  # type: ignore[no-untyped-call]
    return answer["found"]


def backward_of(
    reference: Callable[..., object],
) -> Callable[..., InputGradients]:
    """Return a function from the arguments of `reference` and one gradient for each result to the
    gradients of the arguments, which torch finds; they can be differentiated again.
    """
    count = len(inspect.signature(reference).parameters)

    def backward(*values: object) -> InputGradients:
        leaves, structure = pytree.tree_flatten(values[:count])
        places = [at for at, leaf in enumerate(leaves) if _is_differentiable(leaf)]
        which: list[bool] = []

        def followed(*tensors: Tensor) -> list[Tensor]:
            given = list(leaves)
            for at, x in zip(places, tensors, strict=True):
                given[at] = x
            results = [*tensors_of(reference(*pytree.tree_unflatten(given, structure)))]
            which[:] = map(_is_differentiable, results)
            return [x for x in results if _is_differentiable(x)]

        _, pull = torch.func.vjp(followed, *(leaves[at] for at in places))  # type: ignore[misc]
        arriving = pytree.tree_leaves(values[count:])
        grads = pull([grad for grad, wanted in zip(arriving, which, strict=True) if wanted])
        found = dict(zip(places, grads, strict=True))
        gradients = [found.get(at) for at in range(len(leaves))]
        result: InputGradients = pytree.tree_unflatten(gradients, structure)
        return result

    return backward


def _is_differentiable(value: object) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def tensors_of(value: object) -> Iterator[Tensor]:
    """Yield the tensors of an argument or a result, also those in tuples and lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_of(part)


def replaced(value: object, other: Callable[[T], object], kind: type[T]) -> Any:
    """Return a value with a function of each part of a kind, also in tuples and lists."""
    if isinstance(value, kind):
        return other(value)
    if isinstance(value, (list, tuple)):
        return type(value)(replaced(v, other, kind) for v in value)
    return value
