"""Custom operators from their parts: reference, outputs, launch on a GPU, gradients.

`reference` computes the same by torch's operators alone; it is `compute` if that does. Torch
differentiates it forward and batches it, as `pypm.kernels.support.transforms.follow` says, and also
finds the gradients by it where `gradients` is None: they can be differentiated again, as those of
`gradients` can where they are computed by such operators.

`unsupported` is given where a library of C++ registers a kernel for CPUs: under the operator's name
with `_native` behind it, and the same schema. `compute` calls that, and so does compiled code where
`unsupported`, a function of arguments that it names, returns None rather than a reason.

`inlines` is given where `launch` is to become a part of graphs that Inductor compiles, as
`pypm.kernels.support.inlining` says: a function of arguments that it names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, ParamSpec, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from pypm.kernels.support.inlining import Launch
from pypm.kernels.support.operands import OperandDeclaration, Operands, Requires, declared
from pypm.kernels.support.transforms import (
    InputGradients,
    backward_of,
    follow,
    replaced,
    tensors_of,
)
from pypm.kernels.support.twins import choose_twin, define_twins, with_fresh_results
from pypm.torch_internals import OPDEFS, OpOverload, lower_as

__all__ = [
    "STAND_INS",
    "Gradients",
    "InputGradients",
    "Needed",
    "Saved",
    "custom_operator",
    "declaration",
    "reference_of",
]

P = ParamSpec("P")
R = TypeVar("R")
Saved: TypeAlias = tuple[object, ...]
"""Values for the backward pass: tensors, lists of tensors, and constants."""
Needed: TypeAlias = Sequence[bool | list[bool]]
"""For each input, whether it needs a gradient; a list for a list of tensors."""


def _inputs(inputs: Saved, output: object, needed: Needed) -> Saved:
    return inputs


@dataclass(frozen=True, slots=True)
class Gradients(Generic[R]):
    """The backward pass of an operator."""

    backward: Callable[..., InputGradients]
    """Function from the saved values and one gradient for each output, in this order, to the
    gradients of the inputs (None for constants).
    """
    saves: Callable[[Saved, R, Needed], Saved] = _inputs
    """Function from the inputs, the output and which inputs need a gradient to the values to save;
    by default, all inputs.
    """


def custom_operator(
    name: str,
    compute: Callable[P, R],
    *,
    outputs: Callable[..., R],
    operands: Operands | None = None,
    requires: Requires | None = None,
    launch: Callable[..., R] | None = None,
    inlines: Callable[..., bool] | None = None,
    reference: Callable[P, R] | None = None,
    unsupported: Callable[..., str | None] | None = None,
    gradients: Gradients[R] | None = None,
    device: str | None = None,
    flops: Callable[..., int] | None = None,
) -> Callable[P, R]:
    """Return the operator `name` ("namespace::name"), whose schema is the signature of `compute`.

    `compute` runs on all devices, or on `device` alone; its results share no memory with its
    arguments. `launch` takes the same arguments and runs on CUDA instead, on the device of the
    first tensor. `operands` declares the sizes and types of the tensors, in the language of
    `pypm.kernels.support.operands`; `requires` is a function of arguments that it names, to what is
    wrong with them otherwise, or None. Both are asked before anything is computed, and by the fake:
    what does not fit is a TypeError or a ValueError. `outputs` allocates the results, from the
    arguments of `compute` that it names; it is the fake. `flops` computes the FLOPs of the matrix
    products for torch's counter, from the arguments with shapes for tensors, and from the shape of
    the result as `out_shape`; None where there are none. The module describes the other arguments.

    Raises TypeError where `launch` does not take the arguments of `compute`, another function names
    one that `compute` does not have, or a declaration is none.
    """
    signature = inspect.signature(compute)
    empty = _of_all_arguments(f"the outputs of `{name}` depend", outputs, signature)
    misfit = unsupported and _of_all_arguments(f"`{name}` depends", unsupported, signature)
    takes = declared(name, list(signature.parameters), operands or {}, requires)
    schema = torch.library.infer_schema(compute, mutates_args=())
    computed = with_fresh_results(compute, takes.check)
    operator = torch.library.custom_op(
        name, computed, mutates_args=(), device_types=device, schema=schema
    )
    operator.declaration = takes  # type: ignore[attr-defined]
    operator.twin = twin = partial(choose_twin, operator, takes, misfit)  # type: ignore[attr-defined]

    @operator.register_fake
    def _(*args: P.args, **kwargs: P.kwargs) -> R:
        lower_as(operator._opoverload, twin)
        if error := takes.check_symbolic(*args, **kwargs):
            raise error
        return empty(*args, **kwargs)

    kernels = {"CompositeExplicitAutograd" if device is None else device.upper(): compute}
    if launch is not None:
        operator.launch = _inlinable(name, launch, inlines, signature)  # type: ignore[attr-defined]
        kernels["CUDA"] = _on_its_device(name, launch, signature)
        operator.register_kernel("cuda")(with_fresh_results(kernels["CUDA"], takes.check))
    define_twins(operator, kernels, takes.check, empty, flops or _no_products)
    backward, save = _autograd(gradients or Gradients(backward_of(reference or compute)))
    operator.register_autograd(backward, setup_context=save)
    follow(operator, reference or compute)
    return operator


STAND_INS: Final[dict[OpOverload, Callable[..., Tensor]]] = {}
"""For an operator that is compiled at its first call, a function of its arguments that is not, and
takes no longer: choices time it first."""


def declaration(operator: Callable[..., object]) -> OperandDeclaration:
    """Return the declaration of an operator that `custom_operator` returned."""
    found: OperandDeclaration = operator.declaration  # type: ignore[attr-defined]
    return found


def reference_of(target: object) -> Callable[..., object] | None:
    """Return the function of torch's operators that an overload of `custom_operator` computes; None
    for other targets.
    """
    if not isinstance(target, OpOverload):
        return None
    found: Callable[..., object] | None
    found = getattr(OPDEFS.get(target._schema.name), "reference", None)
    return found


def _no_products(*args: object, **kwargs: object) -> int:
    return 0


def _of_all_arguments(
    depends: str, function: Callable[..., R], signature: inspect.Signature
) -> Callable[..., R]:
    """Return a function of all arguments that calls another with those that it names."""
    wanted = list(inspect.signature(function).parameters)
    unknown = [f"`{parameter}`" for parameter in wanted if parameter not in signature.parameters]
    if unknown:
        known = ", ".join(f"`{parameter}`" for parameter in signature.parameters)
        raise TypeError(f"{depends} on {', '.join(unknown)}, but its arguments are {known}")

    def of_all(*args: object, **kwargs: object) -> R:
        given = signature.bind(*args, **kwargs).arguments
        return function(**{parameter: given[parameter] for parameter in wanted})

    return of_all


def _inlinable(
    name: str,
    launch: Callable[..., R],
    inlines: Callable[..., bool] | None,
    signature: inspect.Signature,
) -> Launch[R] | None:
    if inlines is None:
        return None
    return Launch(launch, _of_all_arguments(f"`{name}` depends", inlines, signature))


def _on_its_device(
    name: str, launch: Callable[P, R], signature: inspect.Signature
) -> Callable[P, R]:
    """Return the launch with the first tensor's device as the current one, as Triton requires."""
    try:
        inspect.signature(launch).bind(*signature.parameters)
    except TypeError as error:
        arguments = ", ".join(signature.parameters)
        message = f"the launch of `{name}` does not take its arguments ({arguments}): {error}"
        raise TypeError(message) from None

    def launched(*args: P.args, **kwargs: P.kwargs) -> R:
        first = next(tensors_of((*args, *kwargs.values())))
        with torch.cuda.device_of(first):  # type: ignore[no-untyped-call]
            return launch(*args, **kwargs)

    return launched


# --- gradients -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _SavedPlace:
    """Placeholder for a saved tensor, by its number."""

    number: int


class _BackwardContext(Protocol):
    """The fields of autograd's context that a backward pass uses."""

    needs_input_grad: Sequence[bool]
    saved_tensors: Sequence[Tensor]
    places: Sequence[object]
    """The saved values, with a `_SavedPlace` for each tensor."""

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep these tensors as `saved_tensors`."""


def _autograd(
    gradients: Gradients[R],
) -> tuple[Callable[..., InputGradients], Callable[[_BackwardContext, Saved, R], None]]:
    """Return the backward pass and the function that saves its values, as torch calls them."""

    def save(ctx: _BackwardContext, inputs: Saved, output: R) -> None:
        saved = gradients.saves(inputs, output, _needed(inputs, ctx.needs_input_grad))
        tensors = list(tensors_of(saved))
        numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
        ctx.places = [replaced(x, lambda t: _SavedPlace(numbers[id(t)]), Tensor) for x in saved]
        ctx.save_for_backward(*tensors)

    def backward(ctx: _BackwardContext, *grads: Tensor | None) -> InputGradients:
        tensors = ctx.saved_tensors
        saved = [replaced(x, lambda place: tensors[place.number], _SavedPlace) for x in ctx.places]
        return gradients.backward(*saved, *grads)

    return backward, save


def _needed(inputs: Saved, flat: Iterable[bool]) -> Needed:
    """Return whether each input needs a gradient; torch gives this with lists of tensors opened."""
    left = iter(flat)

    def of(value: object) -> bool | list[bool]:
        if isinstance(value, (list, tuple)) and all(isinstance(x, Tensor) for x in value):
            return [next(left) for _ in value]
        return next(left)

    return [of(value) for value in inputs]
